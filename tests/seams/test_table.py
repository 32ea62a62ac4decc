"""The table of seams against the installed torch, against the records of others, and against our own sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.adaptors.seams.launcher import AGENT, BINDING, LAUNCHER, TAILS
from taskd.adaptors.seams.native import FREEING, SEEING
from taskd.adaptors.seams.parts import IN_LAUNCHER, NEWEST, OLDEST, PARTS, minor, misfits, newer
from taskd.adaptors.seams.seam import Fit, Seam, TorchName, installed, torch_version, verify
from taskd.adaptors.seams.worker import ABORT, FAKE, MESH, STORED, TIMEOUT
from taskd.errors import PatchError
from tests.seams import recording

ROOT = Path(__file__).resolve().parents[2]
RECORDED = recording.read()
NOT_IN_THE_TABLE = {
    "torch._foreach_copy_": "its absence is an error of the step that calls it, and every version has it",
    "torch._C": "what is used of it stands in the table or here",
    "torch._C._current_graph_task_id": "without it the self-check is left out, and every version has it",
    "torch._C._dynamo.eval_frame": "what is used of it stands there",
    "torch._C._distributed_c10d": "its classes are torch.distributed's, under their public names",
}


def test_the_installed_torch_has_every_seam() -> None:
    assert not list(misfits())


def test_what_is_recorded_of_the_installed_torch_is_what_it_has() -> None:
    version = torch_version().partition("+")[0]
    if version not in RECORDED:
        pytest.skip(f"torch {version} is not recorded")
    assert recording.record(installed) == RECORDED[version]


@pytest.mark.parametrize("version", RECORDED)
def test_every_recorded_torch_fits(version: str) -> None:
    assert not list(misfits(recording.look_into(RECORDED[version]))), (
        "a seam was changed: after that, .venv/bin/python scripts/record-seams.py"
    )


def test_the_range_is_what_is_recorded() -> None:
    assert [minor(version) for version in RECORDED] == [(2, number) for number in range(OLDEST[1], NEWEST[1] + 1)]


@pytest.mark.parametrize(
    ("version", "ways"),
    [
        ("2.6.0", [1, 1, 1, 1, 1, 1, 1]),
        ("2.8.0", [1, 1, 1, 0, 1, 1, 0]),
        ("2.9.1", [1, 0, 1, 0, 1, 0, 0]),
        ("2.10.0", [0, 0, 0, 0, 0, 0, 0]),
        ("2.15.0", [0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_what_versions_do_in_other_ways(version: str, ways: list[int]) -> None:
    look = recording.look_into(RECORDED[version])
    choices = (TAILS, BINDING, FAKE, ABORT, STORED, TIMEOUT, MESH)
    assert [choice.variants.index(choice.find(look)) for choice in choices] == ways


def test_every_override_stands_in_the_table() -> None:
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    from taskd.adaptors.torchrun.agent import TaskdElasticAgent
    from taskd.adaptors.torchrun.host import TaskdContext
    from taskd.adaptors.training.checkpoints import reader as checkpoints

    listed = {seam.attribute for seam in recording.all_seams()}
    for ours, stock in (
        (TaskdElasticAgent, "LocalElasticAgent"),
        (TaskdContext, SubprocessContext.__name__),
        (checkpoints._CheckpointReader, "FileSystemReader"),
        (checkpoints._NewFiles, "FileSystem"),
        (checkpoints._TrueFiles, "FileSystem"),
    ):
        parent = ours.__mro__[1]
        overrides = {name for name in vars(ours) if name in dir(parent) and callable(vars(ours)[name])} - {"__init__"}
        assert {f"{stock}.{name}" for name in overrides} <= listed


def test_every_private_name_of_torch_that_is_used_stands_in_the_table() -> None:
    listed = {name for seam in recording.all_seams() for name in (*seam.attribute.split("."), *seam.names)}
    unlisted = {
        f"{file.relative_to(ROOT)}: {used}"
        for file in sorted((ROOT / "taskd").rglob("*.py"))
        for used in _private_names(ast.parse(file.read_text()))
        if used not in NOT_IN_THE_TABLE and not _last_private(used) & listed
    }
    assert not unlisted


def _last_private(dotted: str) -> set[str]:
    """Return the last private part of the name, and all parts after it."""
    parts = dotted.split(".")
    private = [index for index, part in enumerate(parts) if part.startswith("_")]
    return set(parts[private[-1] :])


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Yield names with a leading "_" that a module imports of torch, or reads from an import of it."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                one.asname or "torch": (one.asname and one.name) or "torch" for one in node.names if _of_torch(one.name)
            }
        elif isinstance(node, ast.ImportFrom) and _of_torch(node.module or ""):
            known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    used = set(known.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            first, _, rest = dotted.partition(".")
            if first in known and re.fullmatch(r"[\w.]+", rest):
                used.add(f"{known[first]}.{rest}")
    for dotted in used:
        name = dotted.removeprefix("torch._C._distributed_c10d.")  # torch.distributed exports its public names
        if any(part.startswith("_") and not part.startswith("__") for part in name.split(".")):
            yield dotted


def _of_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def test_the_symbols_are_those_of_the_shim() -> None:
    text = (ROOT / "csrc" / "binding.h").read_text()
    milliseconds = re.search(r'TD_MILLISECONDS "(\w+)"', text)
    assert milliseconds is not None
    ours = re.sub(r'TD_TCP\(("\w+")( TD_MILLISECONDS)?\)', lambda found: _spelt(found, milliseconds.group(1)), text)
    symbols = set(re.findall(r'"(_ZN4gloo\w+)"', ours)) - {"_ZN4gloo9transport3tcp"}
    assert symbols == {seam.attribute for seam in (*FREEING, *SEEING)}


def _spelt(found: re.Match[str], milliseconds: str) -> str:
    return f'"_ZN4gloo9transport3tcp{found.group(1)[1:-1]}{milliseconds if found.group(2) else ""}"'


@pytest.mark.parametrize(
    ("seam", "text"),
    [
        (
            Seam(AGENT, "LocalElasticAgent._start_workers", Fit.EXACT, ("self",)),
            r"takes \(self, worker_group\), expected",
        ),
        (Seam(AGENT, "LocalElasticAgent", Fit.ACCEPTS, ("spec", "colour")), "differing in: colour"),
        (Seam(AGENT, "LocalElasticAgent", Fit.LACKS, ("spec",)), "expected that it does not accept"),
        (
            Seam(AGENT, "LocalElasticAgent", Fit.SETS, ("_colour",)),
            "found no _colour in LocalElasticAgent, whose constructor",
        ),
        (Seam(AGENT, "LocalElasticAgent", Fit.HAS, ("_paint",)), "found no _paint in LocalElasticAgent"),
        (Seam(AGENT, "LocalElasticAgent._paint", Fit.EXACT, ("self",)), "found no LocalElasticAgent._paint"),
        (Seam("torch.distributed.elastic.absent", "x", Fit.EXACT, ()), "found no x"),
        (Seam("libtorch_cpu.so", "_ZN4gloo5paintEv", Fit.EXPORTS), "found no _ZN4gloo5paintEv in libtorch_cpu.so"),
        (Seam("libpaint.so", "_ZN4gloo5paintEv", Fit.EXPORTS), "found no _ZN4gloo5paintEv in libpaint.so"),
    ],
)
def test_a_misfit_is_told_with_what_was_found_and_the_remedy(seam: Seam, text: str) -> None:
    with pytest.raises(PatchError, match=text) as caught:
        verify((*LAUNCHER[:2], seam))
    assert "is not one that this taskd knows: install a taskd for this torch" in str(caught.value)


def test_a_choice_without_a_way_names_what_each_lacks() -> None:
    with pytest.raises(PatchError, match=r"no known way of following.*for 'one list.*for 'one follower each") as caught:
        TAILS.find(lambda _module, _attribute: TorchName())
    assert "_stdout_tail" in str(caught.value)


def test_each_part_says_what_goes_on_without_it() -> None:
    found = dict(misfits(lambda _module, _attribute: "it is gone"))
    assert list(found) == list(PARTS)
    assert found[IN_LAUNCHER].endswith("torchrun is left as it was")
    assert all(part.otherwise in sentences for part, sentences in found.items())


@pytest.mark.parametrize(
    ("version", "is_newer"),
    [
        ("2.6.0", False),
        ("2.15.0+cu132", False),
        ("2.15.3a0+git12", False),
        ("2.16.0.dev20270101", True),
        ("3.0.0", True),
        ("main", False),
    ],
)
def test_a_newer_torch_is_noted(version: str, is_newer: bool) -> None:
    note = newer(version)
    assert bool(note) == is_newer
    assert not note or note.startswith(f"torch {version} is newer than those that were tried (2.6 to 2.15)")
