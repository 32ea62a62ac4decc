"""Mix-ups of ranks and places that mypy must reject, as `scripts/check-kinds.py` checks. This file is never run."""

from pathlib import Path
from signal import SIGKILL

from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.torchrun.handles import RankHandles
from taskd.adaptors.torchrun.host import TorchrunHost
from taskd.adaptors.training.checkpoints.files import position_file
from taskd.adaptors.training.checkpoints.ranks import Ranks
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.restore import restore as restore_state
from taskd.config.worker import WorkerConfig
from taskd.core.agent import Fence, Node, Start, Take
from taskd.core.diagnosis.account import finding
from taskd.core.diagnosis.diagnose import lost_with_node
from taskd.core.diagnosis.evidence import Collective, Evidence
from taskd.core.diagnosis.findings import Diagnosis, Kind
from taskd.core.diagnosis.jobview import Cut, JobView, blame
from taskd.core.diagnosis.rhythm import Activity
from taskd.core.diagnosis.watch import Watch
from taskd.core.membership.places import Nodes
from taskd.core.nodecheck.check_run import Wanted
from taskd.core.policy import Policy
from taskd.core.recovery import AskCluster, Recovery
from taskd.core.recovery.events import Lost
from taskd.core.recovery.ranks import Restore
from taskd.core.recovery.world import RankView, World
from taskd.core.stragglers.detector import Layout
from taskd.core.stragglers.exclusion import Exclusion
from taskd.runtime.agent.collector import EvidenceCollector
from taskd.runtime.agent.pace import Pacer
from taskd.runtime.agent.ports import NodeIdentity, WorkerHost
from taskd.runtime.agent.rank_process import RankProcesses
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.box.recorder import Recorder
from taskd.runtime.chaos.job import LocalJob
from taskd.runtime.manager.cluster import Cluster
from taskd.runtime.manager.faultfolder import FaultFolder
from taskd.runtime.records.timeline import Timeline
from taskd.wire.kinds import JobRank, LocalRank, NodeRank, WorldRank
from taskd.wire.messages import Place, RankOrder, WorldPlan
from taskd.wire.probes import ProbeOrder
from taskd.wire.state import Transfer


def as_job_rank(world: World, world_rank: WorldRank, local_rank: LocalRank, node_rank: NodeRank) -> RankView:
    """Pass other numbers where a rank of the job is required."""
    world.replace(world_rank, 0.0, joins=False)  # must fail
    RankOrder(rank=local_rank, incarnation=0)  # must fail
    RankOrder(rank=3, incarnation=0)  # must fail
    Lost(node_rank)  # must fail
    return world.ranks[node_rank]  # must fail


def as_place(nodes: Nodes, rank: JobRank) -> str:
    """Pass a rank of the job where a place is required."""
    nodes.vacate(rank)  # must fail
    Place(node_rank=rank, agent_id="")  # must fail
    return nodes.holders[rank]  # must fail


def successor(rank: JobRank) -> JobRank:
    """Return a calculated number without a conversion: the result of arithmetic is a plain int."""
    return rank + 1  # must fail


def in_the_world(restore: Restore, rank: JobRank) -> WorldPlan:
    """Pass ranks of the job where ranks of the present world are required."""
    Transfer(donor=rank, receivers=())  # must fail
    Transfer(donor=WorldRank(0), receivers=(rank,))  # must fail
    return WorldPlan(
        generation=1,
        world_size=2,
        store_host="",
        store_port=0,
        target_step=restore.target_step,
        adopt=restore.adopt,  # must fail
        transfers=restore.transfers,  # must fail
        timeout_s=1.0,
    )


def in_a_diagnosis(view: JobView, watch: Watch, call: Collective, node_rank: NodeRank) -> Diagnosis:
    """Pass nodes, ranks in a communicator, and numbers without a kind where ranks of the job are required."""
    finding(node_rank, Kind.STOPPED, Evidence())  # must fail
    Evidence(node=JobRank(0))  # must fail
    Cut(JobRank(0), node_rank)  # must fail
    blame(view, [call.peer], {})  # must fail
    watch.hear("agent", 1, {node_rank: Evidence()}, 0.0)  # must fail
    watch.progress(JobRank(0), None, 0.0)  # must fail
    lost_with_node([node_rank], "")  # must fail
    view.evidence[call.peer]  # must fail
    return Diagnosis(Kind.STOPPED, (3,), (node_rank,), "", ())  # must fail


def as_node(layout: Layout, job: Policy, rank: JobRank) -> tuple[NodeRank, Activity]:
    """Pass a rank where its node is required."""
    layout.nodes[layout.nodes[rank]]  # must fail
    Exclusion((rank,), "")  # must fail
    Wanted(rank, "")  # must fail
    AskCluster(rank, "")  # must fail
    job.place_of(job.place_of(rank))  # must fail
    return rank, Activity.EVALUATION  # must fail


def of_an_agent(core: Recovery, node: Node, local_rank: LocalRank, world_rank: WorldRank) -> None:
    """Mix up ranks in an agent's reports on its ranks, and in the instructions that it receives for them."""
    core.hear_evidence("agent", 1, {local_rank: Evidence()}, 0.0)  # must fail
    node.connected(local_rank)  # must fail
    node.ended(world_rank, status=0, cause="", at_s=0.0)  # must fail
    node.slots[local_rank]  # must fail
    Start(local_rank, 1, 1, joins=True)  # must fail
    Fence(world_rank)  # must fail
    Take(JobRank(0))  # must fail


def on_its_node(
    files: RankFiles, processes: RankProcesses, collector: EvidenceCollector, host: WorkerHost, rank: JobRank
) -> None:
    """Pass a rank of the job where a rank of the node is required, and the reverse."""
    files.prepare(rank, 0, 0, Shape(), joins=False)  # must fail
    files.box(rank, 0)  # must fail
    processes.number_fresh(rank, 0)  # must fail
    host.exit_status(rank)  # must fail
    host.assign(rank)  # must fail
    ProbeOrder(local_rank=rank)  # must fail
    for local_rank in host.local_ranks:
        processes.box(local_rank)  # must fail
        collector.look(local_rank)  # must fail
        Pacer(local_rank)  # must fail


def of_torchrun(host: TorchrunHost, handles: RankHandles, rank: JobRank) -> NodeIdentity:
    """Mix up the same ranks where torch's own numbers become kinds."""
    handles.fence(rank)  # must fail
    host.kill(rank, SIGKILL)  # must fail
    return NodeIdentity(rank, 2, host.local_ranks, None, 3)  # must fail


def of_a_manager(cluster: Cluster, faults: FaultFolder, told: Diagnosis, rank: JobRank, place: NodeRank) -> None:
    """Mix up ranks and places in a manager's requests and records."""
    cluster.request(rank, "")  # must fail
    faults.write(1, {}, told, {place: Evidence()})  # must fail


def in_records(job: LocalJob, timeline: Timeline, recorder: Recorder, box: Path) -> JobRank:
    """Mix up ranks in the records that the command line reads again."""
    for local_rank in job.of_node():
        job.rank(local_rank)  # must fail
        job.ranks()[local_rank]  # must fail
        timeline.pids[local_rank]  # must fail
        recorder.attach(box, local_rank, 0)  # must fail
    return timeline.boxes[0].incarnation  # must fail


def in_a_checkpoint(ranks: Ranks, rank: JobRank) -> JobRank:
    """Mix up ranks of the job with ranks of the present world, which write a checkpoint."""
    position_file(rank)  # must fail
    WorkerConfig(Path(), 0, Path(), 0, 0, rank=ranks.rank)  # must fail
    return ranks.rank  # must fail


def in_a_rank(groups: GroupWorld, recovery: StateRecovery, plan: WorldPlan, rank: JobRank, at: WorldRank) -> JobRank:
    """Pass a rank of the job where a rank of a world is required, and the reverse."""
    restore_state(recovery, plan, rank)  # must fail
    groups.rebuild(plan, at)  # must fail
    recovery.enter_world(at, rank, 4, 4)  # must fail
    groups.members.present((at,))  # must fail
    return groups.members.rank_of(rank)  # must fail


def of_every_kind(
    world: World,
    nodes: Nodes,
    policy: Policy,
    host: WorkerHost,
    processes: RankProcesses,
    rank: JobRank,
    place: NodeRank,
) -> RankView:
    """Pass the right kind everywhere; mypy must accept it."""
    world.replace(rank, 0.0, joins=False)
    nodes.vacate(place)
    RankOrder(rank=rank, incarnation=0)
    Transfer(donor=WorldRank(0), receivers=(WorldRank(1),))
    Lost(JobRank(rank + 1))
    finding(rank, Kind.STOPPED, Evidence(node=place))
    Wanted(policy.place_of(rank), "")
    return world.ranks[rank]


def of_every_kind_on_a_node(host: WorkerHost, processes: RankProcesses, files: RankFiles) -> None:
    """Pass the right kind on a node; mypy must accept it."""
    for local_rank in host.local_ranks:
        processes.box(host.rank_of(local_rank))
        files.box(local_rank, 0)
        ProbeOrder(local_rank=local_rank)
