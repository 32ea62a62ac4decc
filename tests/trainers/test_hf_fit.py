"""Versions of transformers, and trainers, that the adapter fits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskd.adaptors.seams.seam import Seam, TorchName
from taskd.adaptors.trainers.hf.fit import ACCELERATE, TRANSFORMERS, unfit


def look(module: str, attribute: str) -> TorchName | str:
    """Return versions that have all names of the tables."""
    lines = [line for line in (*TRANSFORMERS, *ACCELERATE) if isinstance(line, Seam)]
    names = next(line.names for line in lines if (line.module, line.attribute) == (module, attribute))
    return TorchName(names, names, names)


def odd(module: str, attribute: str) -> TorchName | str:
    """Return a version whose epochs have other parameters."""
    return TorchName(("self", "model")) if attribute == "Trainer._run_epoch" else look(module, attribute)


def _inner_training_loop() -> None: ...


_inner_training_loop.__module__ = "transformers.trainer"
LOOP = dict.fromkeys(("_inner_training_loop", "_run_epoch", "_maybe_log_save_evaluate"), _inner_training_loop)


def trainer(body: dict[str, Any] | None = None, **changed: Any) -> Any:
    made = type("MyTrainer", (), {**LOOP, **(body or {})})()
    made.args = SimpleNamespace(auto_find_batch_size=False, n_gpu=0)
    made.is_deepspeed_enabled = False
    made.accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=None),
        dataloader_config=SimpleNamespace(use_seedable_sampler=True, use_stateful_dataloader=False),
    )
    vars(made).update(changed)
    return made


def test_a_trainer_that_fits() -> None:
    assert unfit(trainer(), look) == ""


def test_a_version_that_does_not_fit_is_named() -> None:
    assert "_run_epoch takes (self, model)" in unfit(trainer(), odd)


def own_loop() -> None: ...


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (trainer({"_run_epoch": own_loop}), "MyTrainer has a _run_epoch of its own"),
        (trainer(is_deepspeed_enabled=True), "DeepSpeed"),
        (trainer(args=SimpleNamespace(auto_find_batch_size=True, n_gpu=0)), "auto_find_batch_size"),
        (trainer(_buffered_inputs=None), "keeps batches that it has generated"),
    ],
)
def test_a_trainer_that_is_left_as_it_is(made: Any, reason: str) -> None:
    assert reason in unfit(made, look)


@pytest.fixture
def real(tmp_path: Path) -> Any:
    """Return a trainer of the installed transformers."""
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8))
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    return transformers.Trainer(model=model, args=args)


def test_the_installed_versions_fit(real: Any) -> None:
    assert unfit(real) == ""


def test_without_an_agent_the_trainer_is_as_it_was(real: Any) -> None:
    from taskd.hf import resilient

    kind, held = type(real), set(vars(real))
    with resilient(real):
        assert type(real) is kind
        assert set(vars(real)) == held
