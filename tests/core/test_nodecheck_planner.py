"""For any answers, rounds are valid and bounded. Any number of faults is found within the bound."""

from collections import Counter
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.nodecheck.check import NodeCheck
from taskd.core.nodecheck.diagnosis import NodeHealth
from taskd.core.nodecheck.evidence import Edge, Measured, Round
from taskd.core.nodecheck.pairing import MOST_TRIALS, most_rounds, rounds_at_most
from taskd.wire.checks import Own
from tests.clusters.cluster import Cluster, Fault
from tests.clusters.judge import conduct

SETTINGS = settings(max_examples=300, deadline=None, derandomize=True)
FAST = settings(max_examples=120, deadline=None, derandomize=True)


def named(number: int) -> tuple[str, ...]:
    return tuple(f"n{place:02}" for place in range(number))


def valid(round_: Round, names: tuple[str, ...], down: set[str]) -> None:
    place = {name: at for at, name in enumerate(names)}
    load = Counter(name for edge in round_.edges for name in edge)
    assert len(set(round_.edges)) == len(round_.edges)
    assert all(place[one] < place[other] for one, other in round_.edges)
    assert max(load.values(), default=0) <= MOST_TRIALS
    assert down.isdisjoint((*load, *round_.own))
    assert round_.edges or round_.own


@SETTINGS
@given(st.integers(1, 14), st.integers(0, 4), st.data())
def test_any_answers_end_in_a_diagnosis(number: int, known: int, data: st.DataObject) -> None:
    names = named(number + known)
    check = NodeCheck(names[known:], known_good=names[:known])
    answers = st.sampled_from((0.0, 1.0, 10.0))  # 0.0: fails
    rounds = 0
    while (round_ := check.plan()) is not None:
        valid(round_, names, set(check.diagnosis().having(NodeHealth.DOWN)))
        rounds += 1
        owns = {name: data.draw(answers) for name in round_.own}
        rates = {edge: data.draw(answers) for edge in round_.edges}
        own = {name: Own(ok=rate > 0, compute_tflops=rate) for name, rate in owns.items()}
        trials = {edge: Measured(ok=rate > 0, gbps=rate) for edge, rate in rates.items()}
        check.take(round_.number, own, trials)
    assert rounds == check.rounds <= most_rounds(len(names))
    assert tuple(check.diagnosis().nodes) == names[known:]


@SETTINGS
@given(st.integers(4, 60), st.data())
def test_a_quarter_of_faulty_nodes_is_found_in_two_rounds(number: int, data: st.DataObject) -> None:
    names = named(number)
    faulty = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=number // 4))
    kinds = st.sampled_from((Fault.MUTE, Fault.HANG, Fault.BROKEN, Fault.DISK))
    cluster = Cluster(1, names, faults={name: data.draw(kinds) for name in sorted(faulty)})
    check = NodeCheck(names)
    rounds, _ = conduct(check, cluster)
    assert set(check.diagnosis().having(NodeHealth.DOWN)) == faulty
    assert len(check.diagnosis().having(NodeHealth.HEALTHY)) == number - len(faulty)
    assert len(rounds) <= rounds_at_most(number, len(faulty)) == 2


@SETTINGS
@given(st.integers(4, 14), st.data())
def test_any_number_of_faulty_nodes_is_found_while_two_are_well(number: int, data: st.DataObject) -> None:
    names = named(number)
    faulty = data.draw(st.sets(st.sampled_from(names), max_size=number - 2))
    check = NodeCheck(names)
    rounds, _ = conduct(check, Cluster(1, names, faults=dict.fromkeys(sorted(faulty), Fault.MUTE)))
    assert set(check.diagnosis().having(NodeHealth.DOWN)) == faulty
    assert not check.diagnosis().having(NodeHealth.UNDECIDED)
    assert len(rounds) <= rounds_at_most(number, len(faulty))


@FAST
@given(st.integers(8, 40), st.data())
def test_links_that_are_down_take_one_round_more(number: int, data: st.DataObject) -> None:
    """Faulty nodes and links are a quarter of the nodes at most; no node has two links that are down."""
    names = named(number)
    order = data.draw(st.permutations(names))
    cut = data.draw(st.integers(0, number // 8))
    ends = [(order[2 * at], order[2 * at + 1]) for at in range(cut)]
    links: set[Edge] = {(min(pair), max(pair)) for pair in ends}
    faulty = set(order[2 * cut : 2 * cut + data.draw(st.integers(0, number // 4 - cut))])
    check = NodeCheck(names)
    rounds, _ = conduct(check, Cluster(1, names, faults=dict.fromkeys(sorted(faulty), Fault.MUTE), down=links))
    diagnosis = check.diagnosis()
    assert set(diagnosis.having(NodeHealth.DOWN)) == faulty
    assert not diagnosis.having(NodeHealth.UNDECIDED)
    tried = {edge for round_ in rounds for edge in round_.edges}
    assert {link.edge for link in diagnosis.links} == links & tried
    assert len(rounds) <= rounds_at_most(number, len(faulty) + cut, links=cut > 0) <= 3


@FAST
@given(st.integers(2, 40))
def test_a_cluster_that_is_well_takes_one_round_of_disjoint_pairs(number: int) -> None:
    names = named(number)
    ((round_,), _) = conduct(NodeCheck(names), Cluster(1, names))
    triple = set(combinations(names[-3:], 2)) if number % 2 and number > 1 else set()
    assert set(round_.edges) == set(zip(names[::2], names[1::2], strict=False)) | triple
    assert round_.own == names


@FAST
@given(st.integers(4, 12), st.data())
def test_while_no_pair_has_passed_no_pair_is_tried_twice(number: int, data: st.DataObject) -> None:
    names = named(number)
    kinds = st.sampled_from((Fault.MUTE, Fault.HANG))
    cluster = Cluster(1, names, faults={name: data.draw(kinds) for name in names[:-1]})
    rounds, _ = conduct(NodeCheck(names), cluster)
    tried = Counter(edge for round_ in rounds for edge in round_.edges)
    assert max(tried.values()) == 1
    assert len(rounds) <= 1 + -(-(number - 1 + number % 2) // 2)


def test_the_same_answers_lead_to_the_same_rounds_in_whatever_order_they_come() -> None:
    names = named(24)
    seen = []
    for backwards in (False, True):
        cluster = Cluster(3, names, faults={"n03": Fault.MUTE, "n08": Fault.BROKEN}, down={("n10", "n11")})
        check = NodeCheck(names)
        rounds = []
        while (round_ := check.plan()) is not None:
            own, trials = cluster.owns(round_), cluster.trials(round_)
            if backwards:
                own, trials = dict(reversed(own.items())), dict(reversed(trials.items()))
            check.take(round_.number, own, trials)
            rounds.append(round_)
        seen.append((rounds, check.diagnosis()))
    assert seen[0] == seen[1]
