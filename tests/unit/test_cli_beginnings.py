"""How `fafo build` tells of shared beginnings: one line for two classes, few for any number."""

from __future__ import annotations

import random

from fafo_build.bake.tree import prefix_tree
from fafo_build.cli.beginnings import as_json, lines


def run(*pieces: tuple[int, int]) -> tuple[int, ...]:
    """Return ids made of pieces: so many times this id."""
    return tuple(id_ for id_, times in pieces for _ in range(times))


def test_two_classes() -> None:
    assert lines([prefix_tree({"exam": run((1, 214), (2, 9)), "child": run((1, 214), (3, 5))})]) == [
        "  shared beginning: 214 tokens of both"
    ]


def test_three_that_have_no_more_in_common_in_pairs() -> None:
    tree = prefix_tree({name: run((1, 40), (at, 9)) for at, name in enumerate("abc", 2)})
    assert lines([tree]) == ["  shared beginning: 40 tokens of all 3"]


def test_some_of_the_classes() -> None:
    found = {f"c{at}": run((1, 40), (at + 2, 9)) for at in range(7)} | {"other": (9,)}
    assert lines([prefix_tree(found)]) == ["  shared beginning: 40 tokens of c0, c1, c2, c3 and 3 more"]


def test_nothing_in_common_is_no_line() -> None:
    assert lines([prefix_tree({"a": (1,), "b": (2,)})]) == []
    assert lines([]) == []


def test_a_tree() -> None:
    tree = prefix_tree(
        {
            "exam": run((1, 38), (2, 176), (3, 9)),
            "child": run((1, 38), (2, 176), (4, 9)),
            "judge_a": run((1, 38), (5, 100), (6, 50), (1, 1)),
            "judge_b": run((1, 38), (5, 100), (6, 50), (2, 1)),
            "judge_c": run((1, 38), (5, 100), (7, 9)),
            "alone": run((8, 99)),
            "also": run((9, 10), (1, 1)),
            "another": run((9, 10), (2, 1)),
        }
    )
    assert lines([tree]) == [
        "  shared beginnings",
        "    10 tokens of also, another",
        "    38 tokens of child, exam, judge_a, judge_b and 1 more",
        "    ├─ 214 tokens of child, exam",
        "    └─ 138 tokens of judge_a, judge_b, judge_c",
        "       └─ 188 tokens of judge_a, judge_b",
    ]


def test_a_word_that_some_begin_with_by_chance_is_only_in_json() -> None:
    tree = prefix_tree(
        {"a": run((1, 40), (2, 1), (3, 5)), "b": run((1, 40), (2, 1), (4, 5)), "c": run((1, 40), (5, 5))}
    )
    assert lines([tree]) == ["  shared beginning: 40 tokens of all 3"]
    (told,) = as_json([tree])
    assert told == {
        "model": "",
        "order": ["a", "b", "c"],
        "branches": [
            {"tokens": 40, "added": 40, "parent": None, "classes": ["a", "b", "c"]},
            {"tokens": 41, "added": 1, "parent": 0, "classes": ["a", "b"]},
        ],
    }


def test_words_by_chance_add_up_to_a_branch() -> None:
    tree = prefix_tree(
        {f"c{at}": run((1, 4), (2, 3 * at), (3, 40)) for at in range(6)}  # branches at 4, 7, 10, 13, 16
    )
    assert [branch.tokens for branch in tree.branches] == [4, 7, 10, 13, 16]
    assert lines([tree]) == [
        "  shared beginnings",
        "    4 tokens of all 6",
        "    └─ 13 tokens of c3, c4, c5",
    ]


def test_three_hundred_classes_are_a_dozen_lines_and_the_heaviest_are_there() -> None:
    drawn = random.Random(5)
    found = {}
    for family in range(40):
        start = run((1, 50), (family + 2, 100 + family))
        for at in range(drawn.randrange(5, 10)):
            found[f"f{family:02}_{at}"] = (*start, *(drawn.randrange(9) for _ in range(200)))
    tree = prefix_tree(found)
    told = lines([tree])
    assert told[:2] == ["  shared beginnings", f"    50 tokens of all {len(found)}"]
    assert len(told) <= 14
    hidden = sum(branch.tokens >= 150 and branch.added >= 8 for branch in tree.branches) - 11
    assert told[-1] == f"    and {hidden} more; all of them with --json"
    assert max(map(len, told)) < 110
    spared = {branch: branch.added * (branch.end - branch.begin - 1) for branch in tree.branches}
    heaviest = max(tree.branches[1:], key=spared.__getitem__)
    assert any(f"─ {heaviest.tokens} tokens of {tree.classes(heaviest)[0]}, " in line for line in told)


def test_several_models_are_named() -> None:
    trees = [prefix_tree({"a": (1, 1), "b": (1, 2)}, "m@1"), prefix_tree({"c": (1,)}, "n")]
    assert lines(trees) == ["  shared beginning: 1 token of both (m@1)"]
