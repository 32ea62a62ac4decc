"""The seams of the adapter of Megatron's core that one process can test: its own objects, without a job."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

pytest.importorskip("megatron.core")

from megatron.core import rerun_state_machine
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucket, _ParamAndGradBucketGroup
from megatron.core.optimizer.grad_scaler import DynamicGradScaler
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.timers import Timers
from megatron.core.transformer import TransformerConfig

from taskd.adaptors.seams.seam import TorchName, installed
from taskd.adaptors.trainers.library import misfit
from taskd.adaptors.trainers.megatron import interrupted, limits
from taskd.adaptors.trainers.megatron.followers import MegatronScaler, MegatronSchedule
from taskd.adaptors.trainers.megatron.held import UnfitPart
from taskd.adaptors.trainers.megatron.seams import PACKAGE, TABLE
from taskd.adaptors.trainers.megatron.tracker import TrackerStates
from taskd.adaptors.trainers.megatron.training_state import part_of, state
from taskd.errors import ConfigError
from tests.trainers.programs.megatron_on_cpu import OnCpu

pytestmark = pytest.mark.filterwarnings("ignore")


class Holder:
    """An object with groups of parameters."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [], "lr": 0.0, "weight_decay": 0.0}]


class Chunk:
    """The bucket groups of a wrapper."""

    def __init__(self, *groups: Any) -> None:
        self.bucket_groups = groups
        self.expert_parallel_bucket_groups: tuple[Any, ...] = ()


def schedule() -> Any:
    return OptimizerParamScheduler(Holder(), 0.0, 1e-2, 1e-4, 16, 1000, "cosine", 0.01, 0.01, 1000, "constant")


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()  # handles of completed work lie in cycles, and hold the group


def test_the_installed_version_fits() -> None:
    assert not misfit(PACKAGE, TABLE)


def test_what_does_not_fit_trains_as_it_is_and_says_why() -> None:
    def other(module: str, name: str) -> TorchName | str:
        return "it is gone" if name == "_ParamAndGradBucketGroup" else installed(module, name)

    part = part_of([], [], None, other)
    assert isinstance(part, UnfitPart)
    assert "_ParamAndGradBucketGroup" in part.refusal
    assert "is not one that this taskd knows" in part.refusal


def test_another_wrapper_is_refused() -> None:
    assert "expected Megatron's own DistributedDataParallel" in part_of([torch.nn.Linear(1, 1)], [], None).refusal


@pytest.mark.parametrize(
    "name", ["cuda_graph_impl='local'", "tp_comm_overlap", "moe_token_dispatcher_type='flex'", "nccl_ub"]
)
def test_communicators_that_are_built_in_are_refused(name: str) -> None:
    setting, _, value = name.partition("=")
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    chunk = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(chunk)
    chunk.config, chunk.ddp_config, chunk.bucket_groups = config, DistributedDataParallelConfig(), []
    assert not limits.refusal([chunk], [])
    setattr(chunk.ddp_config if setting == "nccl_ub" else config, setting, value.strip("'") or True)
    assert f"is trained with {name}, which keeps communicators" in limits.refusal([chunk], [])


def test_an_optimizer_that_divides_layers_is_refused() -> None:
    made = LayerWiseDistributedOptimizer.__new__(LayerWiseDistributedOptimizer)
    assert "whole layers" in part_of([], [], None, chained=made).refusal


def test_an_optimizer_without_one_of_torch_is_an_error() -> None:
    with pytest.raises(ConfigError, match="expected what get_megatron_optimizer"):
        state([torch.nn.Linear(1, 1)], Holder())


def test_a_schedule_follows_by_what_it_has_always_moved() -> None:
    theirs = schedule()
    mine = MegatronSchedule(theirs)
    assert mine.lags()
    for _ in range(3):
        theirs.step(increment=8)
        assert not mine.lags()
        mine.committed(stepped=True)
    mine.follow()
    assert theirs.num_steps == 32
    mine.follow()
    assert theirs.num_steps == 32


def test_a_step_that_a_scaler_has_left_out_says_nothing_of_the_schedule() -> None:
    theirs = schedule()
    mine = MegatronSchedule(theirs)
    mine.committed(stepped=False)
    assert mine.lags()
    theirs.step(increment=8)
    mine.committed(stepped=True)
    mine.committed(stepped=False)
    assert not mine.lags()


def test_a_schedule_that_moves_otherwise_is_not_guessed_at() -> None:
    theirs = schedule()
    mine = MegatronSchedule(theirs)
    for increment in (8, 16):
        theirs.step(increment=increment)
        mine.committed(stepped=True)
    assert mine.lags()


def test_a_schedule_that_never_moves_needs_not_follow() -> None:
    mine = MegatronSchedule(schedule())
    mine.committed(stepped=True)
    assert not mine.lags()
    mine.follow()
    assert mine.counted == 0


def test_a_schedule_is_put_back_with_its_learning_rate() -> None:
    theirs = schedule()
    theirs.step(increment=8)
    mine = MegatronSchedule(theirs)
    before = theirs.optimizer.param_groups[0]["lr"]
    theirs.step(increment=8)
    assert theirs.optimizer.param_groups[0]["lr"] != before
    mine.put_back()
    assert (theirs.num_steps, theirs.optimizer.param_groups[0]["lr"]) == (8, before)


def test_a_scaler_that_has_seen_an_overflow_is_put_back() -> None:
    with OnCpu():
        theirs = DynamicGradScaler(1024.0, 1.0, 2.0, 0.5, 10, 1)
        mine = MegatronScaler(theirs)
        theirs.update(found_inf=True)
        assert theirs.scale.item() == 512.0
        mine.put_back()
        assert (theirs.scale.item(), theirs._hysteresis_tracker) == (1024.0, 1)
        other = DynamicGradScaler(2.0, 1.0, 2.0, 0.5, 10, 1)
        MegatronScaler(other).take(mine.state())
        assert other.scale.item() == 1024.0


@pytest.mark.parametrize("kind", ["state", "generator"])
def test_the_tracker_is_packed_anew_only_where_it_has_moved(kind: str) -> None:
    tracker, generator = CudaRNGStatesTracker(), torch.Generator().manual_seed(1)
    tracker.set_states({"model-parallel-rng": generator if kind == "generator" else generator.get_state()})
    mine = TrackerStates(tracker)
    before = mine.pack()
    assert mine.pack() == before
    assert kind == "generator" or mine.pack() is before
    torch.rand(1, generator=generator)
    if kind == "state":  # as `fork` does after a draw
        tracker.states_["model-parallel-rng"] = generator.get_state()
    moved = mine.pack()
    assert moved != before
    mine.unpack(before)
    assert mine.pack() == before
    mine.unpack(moved)
    assert mine.pack() == moved


def test_the_tracker_draws_on() -> None:
    tracker = CudaRNGStatesTracker()
    tracker.set_states({"model-parallel-rng": torch.Generator().manual_seed(1).get_state()})
    mine = TrackerStates(tracker)
    known, wanted = mine.state_dict(), tracker.get_states()["model-parallel-rng"]
    tracker.set_states({"model-parallel-rng": torch.Generator().manual_seed(2).get_state()})
    mine.load_state_dict(known)
    assert torch.equal(tracker.get_states()["model-parallel-rng"], wanted)


def test_timers_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    config.timers = Timers(2, "all")
    timer = config.timers("forward-backward", log_level=1)
    timer.start()
    with pytest.raises(AssertionError):
        timer.start()
    interrupted.stop_timers([config, config, object()])
    timer.start()


def test_the_rerun_machine_begins_the_step_again() -> None:
    interrupted.begin_rerun_again()
    rerun_state_machine.initialize_rerun_state_machine()
    try:
        machine = rerun_state_machine.get_rerun_state_machine()
        assert machine.should_run_forward_backward(None)
        interrupted.begin_rerun_again()
        assert machine.should_run_forward_backward(None)
        assert not machine.should_run_forward_backward(None)
        assert machine.current_iteration == 0
    finally:
        rerun_state_machine.destroy_rerun_state_machine()


@pytest.mark.usefixtures("_alone")
def test_a_bucket_group_stands_as_before_its_first_iteration() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    bucket = _ParamAndGradBucket([weight], None, torch.zeros(4), 0, 4, 1.0, 0)
    buckets = _ParamAndGradBucketGroup(
        [bucket], DistributedDataParallelConfig(overlap_grad_reduce=True), dist.group.WORLD, 1
    )
    buckets.register_grad_ready(weight)
    buckets.finish_grad_sync()
    buckets.reset()
    assert not buckets.is_first_batch
    buckets.register_grad_ready(weight)
    assert buckets.grad_reduce_handle is not None
    interrupted.drop_communication([Chunk(buckets)])
    assert buckets.is_first_batch
    buckets.reset()
    buckets.register_grad_ready(weight)
    buckets.finish_grad_sync()
    assert buckets.grad_reduce_handle is None
