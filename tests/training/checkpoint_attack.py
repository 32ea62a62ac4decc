"""A directory of checkpoints of which the newest is attacked, and what has to come of that."""

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
"""A test that waits so long is interrupted, which torch would swallow."""


class Strike:
    """Runs code where it is unpickled: it makes a directory."""

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
        """Both, as they are before."""
        state = make(1)
        for steps in (2, 1):
            train(state, steps)
            dump(state._recovery, shelf, step=state.step, job_id="job", reason="a node was lost")

    def manifest(self) -> Any:
        """What it is before."""
        return json.loads((self.path / "taskd.json").read_text())

    def index(self) -> Any:
        """torch's, as torch reads it."""
        return pickle.loads((self.path / ".metadata").read_bytes())

    def change(self, **fields: Any) -> None:
        """Another content of the manifest."""
        (self.path / "taskd.json").write_text(json.dumps({**self.manifest(), **fields}))

    def place(self, name: str, data: bytes) -> None:
        """Another content of a file, of which the manifest knows."""
        (self.path / name).write_bytes(data)
        self.change(files={**self.manifest()["files"], name: len(data)})

    def fails(self, reason: str) -> None:
        """Step 3 is passed over with that reason, in one line, at once, and step 2 is what is loaded."""
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
        train(state, 1)  # it is a state like any other
