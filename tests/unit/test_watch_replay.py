"""Which of several items a replay takes."""

from __future__ import annotations

import pytest
from attrs import evolve

from fafo_build.errors import DeclarationError
from fafo_run.item import Record
from fafo_run.watch.replay import chosen
from fafo_run.watch.show import Shown, shown
from tests.log_nouns import record


def of(found: Record) -> Shown:
    return shown(found, None, None, current=True)


def refused(*records: Record) -> tuple[str, str | None]:
    with pytest.raises(DeclarationError) as caught:
        chosen([of(each) for each in records], "k")
    (problem,) = caught.value.problems
    return problem.message, problem.cure


ONE = evolve(record(1), key="k", sample=0)


def test_samples_of_one_class_are_named_by_their_samples() -> None:
    other = evolve(ONE, identity=b"\1" * 16, sample=1)
    message, cure = refused(ONE, other)
    assert message == (
        '"k" names 2 items, which differ in sample: '
        f"{ONE.identity.hex()[:12]} (sample 0), 010101010101 (sample 1)"
    )
    assert cure == "name one by its identity", "--class would choose none"


def test_items_of_two_classes_are_chosen_by_class_too() -> None:
    other = evolve(ONE, identity=b"\1" * 16, provenance=evolve(ONE.provenance, class_name="other"))
    message, cure = refused(ONE, other)
    assert "differ in class: " in message and "010101010101 (class other)" in message
    assert cure == "name one by its identity, or choose with --class"


def test_of_many_items_five_are_named() -> None:
    records = [evolve(ONE, identity=bytes([number]) * 16, sample=number) for number in range(7)]
    message, _ = refused(*records)
    assert message.endswith("040404040404 (sample 4) and 2 more")


def test_one_item_is_taken() -> None:
    assert chosen([of(ONE)], "k") is ONE
