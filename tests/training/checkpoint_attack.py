"""A directory of checkpoints whose newest one is attacked, and the expected outcome."""

import json
import logging
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from tests.training.checkpoint_state import make, train

LONG_S = 20
"""Time after which a waiting test is interrupted, in seconds. torch would swallow the interruption."""


class Strike:
    """Object that runs code where it is unpickled: it makes a directory."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


class Attack:
    """A good checkpoint of step 2 in `shelf`, and one of step 3 at `path`, which is attacked."""

    def __init__(self, shelf: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.shelf = shelf
        self.path = shelf / "step-3"
        self._caplog = caplog

    @staticmethod
    def write(shelf: Path) -> None:
        """Write both checkpoints in their intact form."""
        state = make(1)
        for steps in (2, 1):
            train(state, steps)
            dump(state._recovery, shelf, step=state.step, job_id="job", reason="a node was lost")

    def manifest(self) -> Any:
        """Return the present manifest."""
        return json.loads((self.path / "taskd.json").read_text())

    def index(self) -> Any:
        """Return torch's index as torch reads it."""
        return pickle.loads((self.path / ".metadata").read_bytes())

    def change(self, **fields: Any) -> None:
        """Replace fields of the manifest."""
        (self.path / "taskd.json").write_text(json.dumps({**self.manifest(), **fields}))

    def place(self, name: str, data: bytes) -> None:
        """Replace the content of a file and its size in the manifest."""
        (self.path / name).write_bytes(data)
        self.change(files={**self.manifest()["files"], name: len(data)})

    def fails(self, reason: str) -> None:
        """Require that step 3 is skipped with this reason, in one line and at once, and that step 2 is loaded."""
        self._caplog.clear()
        state = make(5)
        began_s = time.monotonic()
        assert load_latest(state, self.shelf) == 2
        assert time.monotonic() - began_s < LONG_S
        ours = [record for record in self._caplog.records if record.name.startswith("taskd")]
        said = [record.getMessage() for record in ours if record.levelno >= logging.WARNING]
        assert len(said) == 1, said
        assert f"{self.path} is passed over: " in said[0]
        assert reason in said[0]
        assert said[0].isprintable()
        assert len(said[0]) < 6000
        train(state, 1)  # the state is usable like any other
