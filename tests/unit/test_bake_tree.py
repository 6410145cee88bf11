"""The tree of common prefixes: it says what the ids say, in an order that keeps beginnings together."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fafo_build.bake.artifact import Artifact, ModelFingerprint, Span
from fafo_build.bake.tree import PrefixTree, common, prefix_tree, prefix_trees

prefixes = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple),
    max_size=9,
)


def told(tree: PrefixTree) -> list[tuple[int, tuple[str, ...]]]:
    return [(branch.tokens, tree.classes(branch)) for branch in tree.branches]


def test_two_families_and_one_alone() -> None:
    tree = prefix_tree(
        {
            "a1": (1, 2, 3, 4),
            "a2": (1, 2, 3, 5, 6),
            "b1": (1, 7, 8),
            "b2": (1, 7, 9),
            "a3": (1, 2, 3, 5, 7),
            "own": (9,),
        }
    )
    assert tree.order == ("a1", "a2", "a3", "b1", "b2", "own")
    assert told(tree) == [
        (1, ("a1", "a2", "a3", "b1", "b2")),
        (3, ("a1", "a2", "a3")),
        (4, ("a2", "a3")),
        (2, ("b1", "b2")),
    ]
    assert [branch.added for branch in tree.branches] == [1, 2, 1, 1]
    assert [branch.parent for branch in tree.branches] == [None, 0, 1, 0]


def test_families_whose_names_alternate_are_kept_together_from_the_first_name_on() -> None:
    tree = prefix_tree({"d": (1, 1), "c": (2, 2), "b": (1, 2), "a": (2, 1), "e": (3,)})
    assert tree.order == ("a", "c", "b", "d", "e")


def test_equal_prefixes_and_a_prefix_of_another() -> None:
    tree = prefix_tree({"x": (1, 2), "y": (1, 2), "z": (1, 2, 3)})
    assert told(tree) == [(2, ("x", "y", "z"))]


def test_nothing_in_common_keeps_the_names_in_order() -> None:
    assert prefix_tree({"b": (1,), "c": (0,), "a": (2,)}) == PrefixTree("", ("a", "b", "c"), ())
    assert prefix_tree({}) == PrefixTree("", (), ())


def test_a_chain_of_any_depth() -> None:
    tree = prefix_tree({f"{length:04}": (7,) * length for length in range(1, 1500)})
    assert len(tree.branches) == 1498
    assert len(tree.order) == 1499


@given(prefixes)
def test_every_branch_is_what_its_classes_have_in_common_and_no_other_has(found: dict[str, tuple]) -> None:
    tree = prefix_tree(found)
    assert sorted(tree.order) == sorted(found)
    for branch in tree.branches:
        classes = tree.classes(branch)
        assert len(classes) > 1
        beginning = found[classes[0]][: branch.tokens]
        assert {name for name in found if found[name][: branch.tokens] == beginning} == set(classes)
        assert min(common(found[a], found[b]) for a, b in combinations(classes, 2)) == branch.tokens
        if branch.parent is None:
            assert branch.added == branch.tokens
        else:
            parent = tree.branches[branch.parent]
            assert set(classes) < set(tree.classes(parent))
            assert branch.added == branch.tokens - parent.tokens > 0


@given(prefixes)
def test_every_pair_meets_in_the_deepest_branch_that_both_are_in(found: dict[str, tuple]) -> None:
    tree = prefix_tree(found)
    for pair in combinations(found, 2):
        both = (branch.tokens for branch in tree.branches if set(pair) <= set(tree.classes(branch)))
        assert max(both, default=0) == common(found[pair[0]], found[pair[1]])


@given(prefixes, st.randoms())
def test_the_tree_doesnt_depend_on_the_order_of_the_input(found: dict[str, tuple], random) -> None:
    names = list(found)
    random.shuffle(names)
    assert prefix_tree({name: found[name] for name in names}) == prefix_tree(found)


def starting(*ids: int, model: str = "m", revision: str | None = None) -> Artifact:
    return Artifact(
        model=ModelFingerprint(model, revision, "00" * 32),
        tokenizer="cd" * 32,
        vocab_size=10,
        spans=(Span("", ids), Span("", ())),
        slots=(),
        holes=(),
        lead=0,
        templates={},
        vars={},
        examples=(),
    )


def test_no_cache_serves_two_models() -> None:
    found = prefix_trees(
        {
            "a": starting(1, 2, 3),
            "b": starting(1, 2, model="n", revision="r1"),
            "c": starting(1, 2, model="n"),
            "d": starting(1, 2, 4),
        }
    )
    assert [(tree.model, tree.order, told(tree)) for tree in found] == [
        ("m", ("a", "d"), [(2, ("a", "d"))]),
        ("n@r1", ("b",), []),
        ("n", ("c",), []),
    ]
    assert prefix_trees({}) == ()
