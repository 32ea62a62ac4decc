"""Nodes that leave because of a diagnosis, and the reported reasons."""

from taskd.core.nodecheck.diagnosis import CheckDiagnosis, LinkDiagnosis, NodeDiagnosis, NodeHealth, choose_out
from taskd.core.nodecheck.evidence import Edge


def diagnosis(
    down: str = "", slow: str = "", cut: tuple[Edge, ...] = (), late: tuple[Edge, ...] = ()
) -> CheckDiagnosis:
    thought = dict.fromkeys(down, NodeHealth.DOWN) | dict.fromkeys(slow, NodeHealth.SLOW)
    return CheckDiagnosis(
        nodes={name: NodeDiagnosis(thought.get(name, NodeHealth.HEALTHY), "why") for name in "abcdef"},
        links=(
            *(LinkDiagnosis(edge, NodeHealth.DOWN, "figures") for edge in cut),
            *(LinkDiagnosis(edge, NodeHealth.SLOW, "figures") for edge in late),
        ),
    )


def left(of: CheckDiagnosis, *, exclude_stragglers: bool = False) -> dict[str, str]:
    return {leave.node: leave.words for leave in choose_out(of, exclude_stragglers=exclude_stragglers)}


def test_the_words_for_nodes() -> None:
    found = diagnosis(down="b", slow="c")
    assert left(found) == {"b": "The node is down."}
    assert left(found, exclude_stragglers=True) == {
        "b": "The node is down.",
        "c": "The node is a straggler and exits.",
    }
    assert choose_out(found, exclude_stragglers=False)[0].reason == "b why"


def test_the_later_end_of_a_link_leaves() -> None:
    assert left(diagnosis(cut=(("a", "d"),))) == {"d": "The link to a is down: figures."}


def test_few_ends_cover_all_links() -> None:
    assert left(diagnosis(cut=(("a", "b"), ("a", "c"), ("a", "f")))) == {"a": "The link to b is down: figures."}
    assert list(left(diagnosis(cut=(("a", "b"), ("b", "c"), ("d", "e"))))) == ["b", "e"]


def test_a_link_of_a_node_that_leaves_anyway_takes_nobody_else() -> None:
    assert list(left(diagnosis(down="a", cut=(("a", "d"),)))) == ["a"]


def test_a_slow_link_takes_an_end_only_if_stragglers_are_excluded() -> None:
    found = diagnosis(cut=(("b", "c"),), late=(("a", "c"), ("a", "d")))
    assert list(left(found)) == ["c"]
    assert left(found, exclude_stragglers=True) == {
        "c": "The link to b is down: figures.",
        "d": "The link to a is slow: figures.",
    }


def test_one_end_may_go_for_links_that_are_down_and_slow() -> None:
    found = diagnosis(cut=(("a", "d"),), late=(("a", "b"), ("a", "c")))
    assert left(found, exclude_stragglers=True) == {"a": "The link to d is down: figures."}


def test_a_node_that_was_known_to_be_good_stays() -> None:
    assert left(diagnosis(cut=(("world", "a"),))) == {"a": "The link to world is down: figures."}
