"""The README's loop over epochs, as it stands there: a rank dies in each of two epochs, and nothing changes."""

from pathlib import Path

import pytest

from tests.e2e.conftest import make_job  # noqa: F401 - a fixture
from tests.e2e.job import ROOT, Job
from tests.e2e.plan import point

pytestmark = pytest.mark.slow

BEFORE = """
import hashlib, json, os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import taskd
from tests.e2e.scripts.points import note, rank, reach

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
def loss_fn(out, y):
    reach(state.step + 1, "forward")
    return nn.functional.mse_loss(out, y)
"""
AFTER = """
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
note(f"result-{rank()}", json.dumps({"weights": digest, "step": state.step}))
if os.environ.get("TASKD_PROCESS_ENABLE") != "on":
    os._exit(0)
dist.destroy_process_group()
"""


def test_the_loop_over_epochs(make_job: object, run_dir: Path) -> None:  # noqa: F811 - the fixture
    text = (ROOT / "README.md").read_text()
    (code,) = [part.split("```")[0] for part in text.split("```python\n")[1:] if "state.epochs(" in part]
    script = run_dir / "readme.py"
    script.write_text(BEFORE + code + AFTER)

    def run(points: list[dict[str, object]], taskd: str | None) -> list[dict[str, object]]:
        job: Job = make_job(2)  # type: ignore[operator]
        job.start(str(script), {"points": points}, env={"TASKD_PROCESS_ENABLE": taskd})
        for number, where in enumerate(points, start=1):
            job.kill(str(where["name"]))
            assert not job.recovered(number)["restart"]
        assert job.end() == 0, job.output
        return job.results()

    kills = [point("inside", 1, 3, "forward"), point("first of the next", 0, 5, "forward")]
    assert run(kills, "on") == run([], None)
