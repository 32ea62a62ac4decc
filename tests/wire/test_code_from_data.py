"""Every place of the package where bytes or names become code, and why no stranger's do: a new one must be listed."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "taskd"

MODULES = {
    "pickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "runpy",
    "code",
    "jsonpickle",
    "yaml",
}
READING = {"load", "loads", "Unpickler", "open", "run_path", "run_module", "interact", "safe_load", "unsafe_load"}
BUILTINS = {"eval", "exec", "__import__"}
ANYWHERE = {
    "import_module", "exec_module", "load_module", "spec_from_file_location", "SourceFileLoader", "CDLL", "dlopen",
    "LoadLibrary", "load_library", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
    "send_object_list", "recv_object_list", "_tensor_to_object", "jit_load", "load_state_dict_from_url", "fromfile",
}  # fmt: skip
"""Attributes that read code, or objects that may hold some, of any owner."""

PASSED = "a name that stands in the calling module"
SAFE = {
    ("adaptors/groups/setup_results.py", "pickle.loads"): (
        2,
        "the agent has given the file's digest, which the rank's first process gave it; the results are in that file",
    ),
    ("adaptors/training/checkpoints/ranks.py", "pickle.loads"): (
        1,
        "from a rank of the job over torch's own collectives, as its object collectives do: as open as training itself",
    ),
    ("adaptors/training/tree.py", "torch.load"): (1, "weights_only=True"),
    ("adaptors/torchrun/quiet_imports.py", "importlib.import_module"): (
        1,
        "TASKD_PRELOAD, a list of taskd's, and what ranks have imported: of other nodes only installed packages",
    ),
    ("adaptors/trainers/deepspeed/kinds.py", "import_module"): (1, PASSED),
    ("adaptors/trainers/lightning/library.py", "importlib.import_module"): (2, PASSED),
    ("adaptors/seams/seam.py", "importlib.import_module"): (1, PASSED),
    ("adaptors/seams/seam.py", "ctypes.CDLL"): (1, "a library of torch's that is loaded already"),
    ("adaptors/training/streams.py", "ctypes.CDLL"): (1, "CUDA's runtime, if torch has loaded it (RTLD_NOLOAD)"),
    ("adaptors/torchrun/start.py", "__import__"): (1, PASSED),
    ("python/start/sitecustomize.py", "__import__"): (1, PASSED),
    ("runtime/box/shim.py", "ffi.dlopen"): (2, "taskd's own library, from its install folder"),
}  # fmt: skip


def found(tree: ast.AST) -> Iterator[str]:
    """Yield each call in one module, in its own text. Imports by a literal name, and calls without a file, are none."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names) if module in MODULES:
                yield from (f"from {module} import {one.name}" for one in names if one.name in READING)
            case ast.Import(names=names):
                yield from (f"import {one.name} as {one.asname}" for one in names if one.name in MODULES and one.asname)
            case ast.Call(func=function, args=args):
                text, first = ast.unparse(function), args[0] if args else None
                owner, _, name = text.rpartition(".")
                given = isinstance(first, ast.Constant) or (name == "CDLL" and first is None)
                reads = (owner in MODULES and name in READING) or text in BUILTINS or text == "torch.load"
                if reads or (name in ANYWHERE and not given):
                    yield text


def test_every_such_place_is_known() -> None:
    here: Counter[tuple[str, str]] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for text in found(ast.parse(path.read_text())):
            here[str(path.relative_to(PACKAGE)), text] += 1
    known = {place: count for place, (count, _) in SAFE.items()}
    assert dict(here) == known, "list what is new in SAFE with the reason why no stranger's bytes come there"


def test_torch_reads_weights_alone() -> None:
    tree = ast.parse((PACKAGE / "adaptors/training/tree.py").read_text())
    (call,) = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load")
    assert "weights_only=True" in ast.unparse(call)


@pytest.mark.parametrize(
    "source",
    [
        "pickle.loads(data)", "pickle.Unpickler(file).load()", "from pickle import loads", "import pickle as p",
        "eval(text)", "importlib.import_module(name)", "torch.load(file)", "marshal.load(file)",
        "dist.all_gather_object(out, mine)",
        "runpy.run_path(path)", "loader.exec_module(module)", "ctypes.CDLL(path)",
    ],
)  # fmt: skip
def test_a_new_one_is_found(source: str) -> None:
    assert list(found(ast.parse(source)))
