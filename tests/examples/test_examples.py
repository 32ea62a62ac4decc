"""The training examples under plain torchrun, and the parts of them that make an exact resume possible."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from examples import chargpt_ddp, digits_ddp
from tests.launch import Launcher
from tests.thorough import everyday

EXAMPLES = Path(digits_ddp.__file__).parent
PLAIN = {"TASKD_PROCESS_ENABLE": None, "OMP_NUM_THREADS": "1"}


def torchrun(launcher: Launcher, ranks: int, script: str, *arguments: str | Path) -> str:
    """Run one example to its end with taskd off. Return its output."""
    command = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    status, output = launcher.run([*command, EXAMPLES / script, *arguments], env=PLAIN, timeout_s=250)
    assert status == 0, output
    return output


@pytest.mark.slow
def test_digits_reach_95_percent_on_4_ranks(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    output = torchrun(launcher, 4, "digits_ddp.py", "--epochs", "6", "--out", out)
    outcome = json.loads(out.read_text())
    assert outcome["accuracy"] > 0.95
    assert outcome["steps"] == 6 * digits_ddp.steps_per_epoch(1437, 4)
    assert outcome["ranks_equal"]
    assert len(set(outcome["pids"])) == 4
    assert f"sha256 {outcome['sha256']}" in output


@pytest.mark.slow
@pytest.mark.thorough
def test_digits_end_with_the_same_weights_each_time_and_others_after_more_steps(
    launcher: Launcher, tmp_path: Path
) -> None:
    def fingerprint(steps: int) -> str:
        out = tmp_path / "out.json"
        torchrun(launcher, 2, "digits_ddp.py", "--steps", str(steps), "--out", out)
        return str(json.loads(out.read_text())["sha256"])

    assert fingerprint(7) == fingerprint(7) != fingerprint(8)


def test_digits_batches_of_an_epoch_share_no_sample() -> None:
    samples, world_size = 1437, 4
    steps = digits_ddp.steps_per_epoch(samples, world_size)
    batches = [
        digits_ddp.batch_indices(step, samples, rank, world_size) for step in range(steps) for rank in range(world_size)
    ]
    taken = torch.cat(batches)
    assert all(len(batch) == digits_ddp.BATCH_SIZE for batch in batches)
    assert len(taken.unique()) == len(taken) == steps * world_size * digits_ddp.BATCH_SIZE
    assert 0 <= int(taken.min()) <= int(taken.max()) < samples


def test_digits_shuffle_anew_each_epoch_and_alike_each_time() -> None:
    steps = digits_ddp.steps_per_epoch(1437, 4)
    first, again, later = (digits_ddp.batch_indices(step, 1437, 2, 4) for step in (3, 3, 3 + steps))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.slow
@pytest.mark.thorough
def test_chargpt_learns_and_writes(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    output = torchrun(launcher, 2, "chargpt_ddp.py", "--steps", "80", "--sample", "40", "--out", out)
    losses = {int(step): loss for step, loss in json.loads(out.read_text())["losses"].items()}
    assert sorted(losses) == list(range(1, 81))
    assert losses[1] > 4  # nearly ln 128: nothing is learnt yet
    assert sum(losses[step] for step in range(71, 81)) / 10 < 3
    assert re.search(r"^def .{20}", output, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", everyday(["dp_shard=2", "dp_replicate=1,dp_shard=2", "dp=1,tp=2", "dp=1,pp=2"], "dp_shard=2")
)
def test_chargpt_learns_on_a_mesh(launcher: Launcher, tmp_path: Path, mesh: str) -> None:
    out = tmp_path / "out.json"
    torchrun(launcher, 2, "chargpt_mesh.py", "--mesh", mesh, "--steps", "30", "--mixed-precision", "--out", out)
    losses = {int(step): loss for step, loss in json.loads(out.read_text())["losses"].items()}
    assert sorted(losses) == list(range(1, 31))
    assert losses[1] > 4
    assert losses[30] < 3.2


def windows(position: dict[str, Any] | None, count: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return `count` batches of a new loader that starts at `position`, and its position after them."""
    text = torch.arange(5000) % chargpt_ddp.VOCABULARY
    loader: StatefulDataLoader[torch.Tensor] = StatefulDataLoader(chargpt_ddp.Windows(text, rank=1), batch_size=4)
    if position is not None:
        loader.load_state_dict(position)
    batches = iter(loader)
    taken = [next(batches) for _ in range(count)]
    return taken, loader.state_dict()


def test_chargpt_loader_goes_on_at_its_position() -> None:
    whole, _ = windows(None, 6)
    first, position = windows(None, 2)
    rest, _ = windows(position, 4)
    assert torch.equal(torch.stack(first + rest), torch.stack(whole))
    assert not torch.equal(whole[1], whole[2])


def test_chargpt_text_is_a_megabyte_of_ascii_python() -> None:
    text = chargpt_ddp.load_text()
    assert len(text) == chargpt_ddp.CORPUS_BYTES
    assert 0 <= int(text.min()) <= int(text.max()) < chargpt_ddp.VOCABULARY
    assert b"\ndef " in bytes(text.tolist())
