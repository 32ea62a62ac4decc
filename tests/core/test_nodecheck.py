"""Results of a node check of few nodes: each case of the design, with the number of rounds."""

import pytest

from taskd.core.nodecheck.check import NodeCheck
from taskd.core.nodecheck.diagnosis import NodeHealth
from taskd.core.nodecheck.evidence import (
    CheckPolicy,
    Edge,
    Measured,
    Round,
    RoundResults,
    RoundTimeout,
    merged,
    timeout_s,
)
from taskd.core.nodecheck.network import Network
from taskd.core.nodecheck.own import Baseline, What
from taskd.core.nodecheck.pairing import rounds_at_most
from taskd.errors import TransitionError
from taskd.wire.checks import Own, TrialResult
from tests.clusters.cluster import Cluster, Fault, Line
from tests.clusters.judge import conduct

POLICY = CheckPolicy()


def nodes(number: int) -> tuple[str, ...]:
    return tuple("abcdefghijklmnopqrstuvwxyz"[:number])


def checked(cluster: Cluster, known_good: tuple[str, ...] = (), **more: object) -> tuple[NodeCheck, int]:
    """Run the check of a cluster to its end. Return it and its number of rounds."""
    judged = [name for name in cluster.names if name not in known_good]
    check = NodeCheck(judged, known_good=known_good, **more)  # type: ignore[arg-type]
    return check, len(conduct(check, cluster)[0])


def healths(check: NodeCheck) -> str:
    """Return one letter per node: Healthy, Down, Slow, Undecided."""
    return "".join(found.health.name[0] for found in check.diagnosis().nodes.values())


@pytest.mark.parametrize(
    ("number", "faults", "said", "rounds"),
    [
        (1, {}, "H", 1),
        (1, {"a": Fault.BROKEN}, "D", 2),
        (2, {}, "HH", 1),
        (2, {"a": Fault.BROKEN}, "DH", 2),
        (2, {"a": Fault.MUTE}, "UU", 2),
        (2, {"a": Fault.BROKEN, "b": Fault.BROKEN}, "DD", 2),
        (3, {}, "HHH", 1),
        (3, {"b": Fault.MUTE}, "HDH", 1),
        (3, {"b": Fault.MUTE, "c": Fault.MUTE}, "UUU", 2),
        (3, {"b": Fault.BROKEN, "c": Fault.HANG}, "HDD", 2),
        (4, {"b": Fault.MUTE}, "HDHH", 2),
        (4, {"a": Fault.MUTE, "c": Fault.MUTE}, "DHDH", 2),  # no pair passes in the first round
        (4, {"a": Fault.DISK}, "DHHH", 2),
        (5, {"d": Fault.MUTE, "e": Fault.MUTE}, "HHHDD", 3),
        (6, {"a": Fault.MUTE, "c": Fault.MUTE, "e": Fault.MUTE}, "DHDHDH", 3),
        (8, {"a": Fault.MUTE, "c": Fault.HANG}, "DHDHHHHH", 2),
        (8, {"a": Fault.MUTE, "b": Fault.MUTE}, "DDHHHHHH", 2),
    ],
)
def test_faulty_nodes(number: int, faults: dict[str, Fault], said: str, rounds: int) -> None:
    check, taken = checked(Cluster(1, nodes(number), faults=faults))
    assert (healths(check), taken) == (said, rounds)


def test_a_node_that_dies_between_the_rounds_is_found_and_those_it_was_tried_with_are_not_blamed() -> None:
    check, _ = checked(Cluster(1, nodes(8), faults={"a": Fault.MUTE, "c": Fault.LATE}))
    assert healths(check) == "DHDHHHHH"


def test_a_check_that_fails_once_accuses_nobody() -> None:
    check, rounds = checked(Cluster(1, nodes(4), stumbling={"c"}))
    assert (healths(check), rounds) == ("HHHH", 2)


@pytest.mark.parametrize(("number", "edge", "rounds"), [(3, ("a", "b"), 2), (4, ("a", "b"), 2), (5, ("d", "e"), 2)])
def test_a_link_is_told_from_its_ends(number: int, edge: Edge, rounds: int) -> None:
    check, taken = checked(Cluster(1, nodes(number), down={edge}))
    diagnosis = check.diagnosis()
    assert set(healths(check)) == {"H"}
    assert [(link.edge, link.health) for link in diagnosis.links] == [(edge, NodeHealth.DOWN)]
    said = f"{edge[0]} and {edge[1]} work with others and have failed with each other 2 times"
    assert said in diagnosis.links[0].text
    assert rounds <= taken <= 4


def test_a_link_that_a_suspect_meets_in_the_second_round_takes_a_third() -> None:
    """b is tried with c and d because of a; its link to c is down."""
    check, rounds = checked(Cluster(1, nodes(8), faults={"a": Fault.MUTE}, down={("b", "c")}))
    assert (healths(check), rounds) == ("DHHHHHHH", 3)
    assert [link.edge for link in check.diagnosis().links] == [("b", "c")]


def test_suspects_that_failed_with_each_other_are_tried_again_together() -> None:
    """This also holds if one of them has stumbled and would come last. Their link is found in the second round."""
    check, rounds = checked(Cluster(1, nodes(12), down={("a", "b"), ("c", "d")}, stumbling={"a"}))
    assert (len(check.diagnosis().links), rounds) == (2, 2)


def test_good_nodes_take_suspects_with_a_partner_that_they_have_reached() -> None:
    """The link between d and e is down and c has stumbled, yet d is not paired with e in its place."""
    check, rounds = checked(Cluster(1, nodes(8), faults={"a": Fault.MUTE}, down={("d", "e")}, stumbling={"c"}))
    assert (healths(check), check.diagnosis().links, rounds) == ("DHHHHHHH", (), 2)


def test_those_who_were_paired_with_nodes_whose_own_check_failed_are_tried_first() -> None:
    check, rounds = checked(Cluster(1, nodes(12), faults=dict.fromkeys("acegik", Fault.BROKEN)))
    assert (healths(check), rounds) == ("DH" * 6, 2)


def test_two_nodes_that_cannot_meet_accuse_nobody() -> None:
    check, rounds = checked(Cluster(1, nodes(2), down={("a", "b")}))
    assert (healths(check), rounds) == ("UU", 2)
    assert "no healthy node was left to try" in check.diagnosis().nodes["a"].text


def test_what_is_slow_of_a_node_is_told_with_figures() -> None:
    cluster = Cluster(1, nodes(4), slow_own={"c": (What.COMPUTE, 0.34)}, slow_networks={"a": Line(bandwidth=0.25)})
    check, rounds = checked(cluster)
    found = check.diagnosis().nodes
    assert (healths(check), found["c"].what, found["a"].what) == ("SHSH", (What.COMPUTE,), (What.NETWORK,))
    assert found["c"].text == "computes 0.398 TFLOP/s, the others 1.12 in the median: 2.8 times slower, 1.5 are allowed"
    figures = "has a network that moves 2.53 GB/s, the others 10.2 in the median: 4.1 times slower, 2 are allowed"
    assert found["a"].text == figures
    assert rounds <= 3


def test_of_three_nodes_the_slow_one_is_accused_only_when_it_was_so_alone() -> None:
    check, rounds = checked(Cluster(1, nodes(3), slow_networks={"a": Line(bandwidth=0.25)}))
    assert (healths(check), rounds) == ("SHH", 2)


def test_who_is_slow_both_ways_is_tried_for_both_at_once() -> None:
    cluster = Cluster(1, nodes(6), slow_networks={"c": Line(bandwidth=0.2, latency=40)})
    check = NodeCheck(cluster.names)
    rounds, _ = conduct(check, cluster)
    assert (healths(check), [len(round_.edges) for round_ in rounds]) == ("HHSHHH", [3, 2])
    assert not any(round_.shared for round_ in rounds)


def test_nobody_is_accused_by_one_round() -> None:
    """A node's own check that failed or was slow, and a link that failed, are tried again first."""
    cluster = Cluster(1, nodes(6), faults={"c": Fault.DISK}, down={("e", "f")}, slow_own={"d": (What.COMPUTE, 0.2)})
    check = NodeCheck(cluster.names)
    round_ = check.plan()
    assert round_ is not None
    check.take(1, cluster.owns(round_), cluster.trials(round_))
    assert (healths(check), check.diagnosis().links) == ("HHUHUU", ())
    conduct(check, cluster)
    assert healths(check)[2:4] == "DS"


def test_a_link_of_three_nodes_is_accused_only_when_it_has_failed_twice() -> None:
    cluster = Cluster(1, nodes(3), down={("a", "b")})
    check = NodeCheck(cluster.names)
    round_ = check.plan()
    assert round_ is not None
    check.take(1, cluster.owns(round_), cluster.trials(round_))
    assert (healths(check), check.diagnosis().links) == ("HHH", ())


def test_who_was_slow_alone_with_one_and_may_be_fast_with_another_is_tried_alone_with_a_second() -> None:
    """If the second partner is slow too, that is enough: the partner that allows more may have left by then."""
    rounds = RoundResults(nodes(4), ())
    network = Network(rounds, POLICY, Baseline(), latency=False)
    found = []
    moved: tuple[dict[Edge, float], ...] = (
        {("a", "b"): 0.5, ("c", "d"): 10.0},
        {("a", "c"): 4.5, ("c", "d"): 4.5, ("b", "d"): 5.0},
        {("a", "d"): 4.5},
    )
    for number, rates in enumerate(moved, 1):
        results = {edge: Measured(ok=True, gbps=rate) for edge, rate in rates.items()}
        rounds.take(Round(number, tuple(rates), ()), {}, results)
        network.take(results)
        found.append((list(network.slow()), network.suspects()))
    assert found[1:] == [([], ["a"]), (["a"], [])]


@pytest.mark.parametrize("seed", range(40))
def test_a_slow_link_of_three_nodes_accuses_no_end_of_it(seed: int) -> None:
    """For any noise: an end may have moved just less than the margin allows, in trials that it shared."""
    check, rounds = checked(Cluster(seed, nodes(3), slow_links={("a", "b"): Line(bandwidth=0.05)}))
    assert (healths(check), [link.health for link in check.diagnosis().links]) == ("HHH", [NodeHealth.SLOW])
    assert rounds <= rounds_at_most(3, 0, slow=1)


@pytest.mark.parametrize("line", [Line(bandwidth=0.1), Line(latency=40)])
def test_a_slow_link_is_tried_with_others_and_once_more(line: Line) -> None:
    check, rounds = checked(Cluster(1, nodes(6), slow_links={("c", "d"): line}))
    assert (healths(check), rounds) == ("HHHHHH", 3)
    assert [(link.edge, link.health) for link in check.diagnosis().links] == [(("c", "d"), NodeHealth.SLOW)]


@pytest.mark.parametrize(("backend", "links"), [("gloo", 0), ("nccl", 1)])
def test_where_cpus_move_the_bytes_a_slow_cpu_is_no_slow_link(backend: str, links: int) -> None:
    cluster = Cluster(
        1, nodes(6), slow_links={("c", "d"): Line(bandwidth=0.05)}, slow_own={"c": (What.COMPUTE, 0.1)}, backend=backend
    )
    check, _ = checked(cluster)
    assert (healths(check), len(check.diagnosis().links)) == ("HHSHHH", links)


def test_of_two_nodes_only_their_own_measures_are_compared() -> None:
    cluster = Cluster(1, nodes(2), slow_own={"b": (What.DISK, 0.1)}, slow_networks={"b": Line(bandwidth=0.1)})
    check, rounds = checked(cluster)
    assert (healths(check), rounds, check.diagnosis().nodes["b"].what) == ("HS", 2, (What.DISK,))


def test_measures_that_vary_by_nature_make_nobody_slow() -> None:
    """b is beyond the margin of the median, but the others differ from each other as much."""
    check = NodeCheck(nodes(5))
    round_ = check.plan()
    assert round_ is not None
    rates = dict(zip(nodes(5), (1.0, 0.6, 1.0, 1.6, 2.5), strict=True))
    own = {name: Own(ok=True, compute_tflops=rate) for name, rate in rates.items()}
    check.take(1, own, {edge: Measured(ok=True, gbps=1.0) for edge in round_.edges})
    assert check.plan() is None
    assert healths(check) == "HHHHH"


@pytest.mark.parametrize(("rate", "said"), [(0.5, "HHHH"), (0.4, "HSHH")])
def test_however_much_the_others_differ_who_is_far_beyond_the_margin_is_slow(rate: float, said: str) -> None:
    """Nodes that share CPUs: 6 deviations of the others would exceed their whole rate."""
    check = NodeCheck(nodes(4))
    rates = dict(zip(nodes(4), (0.7, rate, 1.0, 1.5), strict=True))
    for number in (1, 2):
        round_ = check.plan()
        if round_ is not None:
            own = {name: Own(ok=True, compute_tflops=rates[name]) for name in round_.own}
            check.take(number, own, {edge: Measured(ok=True, gbps=1.0) for edge in round_.edges})
    assert healths(check) == said


def test_versions_and_clocks_are_noted() -> None:
    check, _ = checked(Cluster(1, nodes(4), versions={"b": "2.12"}, clocks_s={"c": 5.0}))
    assert healths(check) == "HHHH"
    assert check.diagnosis().notes == (
        "b has torch 2.12, 3 of 4 nodes have 2.13",
        "c's clock is 5.0 s ahead of the others, 1 s are allowed",
    )


NEWCOMER = Cluster(1, ("a", "b", "c", "new"))


def test_a_newcomer_that_is_well_costs_one_round_and_one_trial() -> None:
    check = NodeCheck(("new",), known_good=("a", "b", "c"))
    (round_,), _ = conduct(check, NEWCOMER)
    assert (round_.edges, round_.own, healths(check)) == ((("a", "new"),), ("new",), "H")


@pytest.mark.parametrize(("known_good", "rounds"), [(("a",), 2), (("a", "b"), 2), (("a", "b", "c"), 2)])
def test_a_newcomer_that_is_down(known_good: tuple[str, ...], rounds: int) -> None:
    cluster = Cluster(1, (*known_good, "new"), faults={"new": Fault.MUTE})
    check, taken = checked(cluster, known_good)
    assert (healths(check), taken) == ("D", rounds)


def test_a_newcomer_is_not_blamed_for_its_partner_or_a_link() -> None:
    names = ("a", "b", "c", "new")
    check, _ = checked(Cluster(1, names, faults={"a": Fault.MUTE}), ("a", "b", "c"))
    assert healths(check) == "H"
    assert check.diagnosis().notes == ("a, a node of the running world, has failed with new, b and c, who live",)
    check, rounds = checked(Cluster(1, names, faults={"a": Fault.MUTE}, down={("b", "c")}), ("a", "b", "c"))
    assert (healths(check), check.diagnosis().links, rounds) == ("H", (), 2)  # the world's own links are not judged
    check, _ = checked(Cluster(1, names, down={("a", "new")}), ("a", "b", "c"))
    assert (healths(check), [link.edge for link in check.diagnosis().links]) == ("H", [("a", "new")])


@pytest.mark.parametrize("known_good", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_newcomer_is_compared_with_the_baseline(known_good: tuple[str, ...]) -> None:
    first, _ = checked(Cluster(1, ("a", "b", "c")))
    names = (*known_good, "new")
    slow = Cluster(2, names, slow_networks={"new": Line(bandwidth=0.2)}, slow_own={"new": (What.MEMORY, 0.1)})
    check, rounds = checked(slow, known_good, baseline=first.baseline())
    assert (healths(check), rounds) == ("S", 2)
    assert check.diagnosis().nodes["new"].what == (What.MEMORY, What.NETWORK)
    check, rounds = checked(Cluster(2, names), known_good, baseline=first.baseline())
    assert (healths(check), rounds) == ("H", 1)


def test_results_of_another_round_are_refused_and_change_nothing() -> None:
    check = NodeCheck(nodes(2))
    round_ = check.plan()
    with pytest.raises(TransitionError, match="results of round 2 came while round 1 is under way"):
        check.take(2, {}, {})
    assert check.plan() is round_
    with pytest.raises(ValueError, match="named twice"):
        NodeCheck(("a", "b"), known_good=("b",))


def test_the_timeout_adapts_to_the_first_results() -> None:
    assert timeout_s([], RoundTimeout()) == 300
    assert timeout_s([1.0], RoundTimeout()) == 15
    assert timeout_s([10.0, 8.0, 90.0], RoundTimeout()) == 40
    assert timeout_s([100.0], RoundTimeout()) == 300


def test_two_reports_of_one_trial_are_one() -> None:
    good = TrialResult(peer="b", ok=True, gbps=2.0, latency_s=0.001)
    bad = TrialResult(peer="a", ok=False, cause="refused")
    slower = TrialResult(peer="a", ok=True, gbps=1.5, latency_s=0.002)
    assert merged(good, slower) == Measured(ok=True, gbps=1.5, latency_s=0.002)
    assert merged(good, bad) == Measured(ok=False, cause="refused", gbps=0.0, latency_s=0.001)
    assert merged(None, bad) == Measured(ok=False, cause="refused")
    assert merged(good, None) == merged(None, None) == Measured(ok=False, cause="no result came in time")
