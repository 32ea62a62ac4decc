"""The first actions of the Pythons that tests start: they import torch without collecting garbage meanwhile.

Rules:

1. `scripts/test.sh` puts this module and a `.pth` file for it into the environment's site-packages: no `sitecustomize`,
   no PYTHONPATH, nothing that a program or taskd itself could also use. Only processes with the mark of a test in
   their environment (`tests/leaks.py`) load it.
2. During the first import of torch there are no collections. Afterwards all present objects are frozen: they are
   collected neither later nor at the end of the process. All later objects of a program are collected as usual.
   Three tenths of such a process's cost are collections of torch's own objects; they find next to nothing.
3. The same holds for `torch._dynamo`, which torch imports with the first optimizer, and which is nearly as large as
   torch. The program has objects of its own by then. So garbage of the import is collected once, and the program's
   objects are untracked while the others are frozen. They are collected as usual.
4. It leaves nothing behind: each finder is removed when it finds its module. It has no loader and no setting itself.
"""

import gc
import sys


class _Finder:
    """Finds one module as the others do, once."""

    def __init__(self, name, frozen_with_it):
        self.name, self.frozen_with_it = name, frozen_with_it

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None:
                _quicken(spec.loader, self.frozen_with_it)
                return spec
        return None


def _quicken(loader, frozen_with_it):
    """Shadow `exec_module` of this one loader object for this one import."""
    stock = getattr(loader, "exec_module", None)
    if stock is None:
        return

    def exec_module(module):
        vars(loader).pop("exec_module", None)  # taskd may have done the same over this, and have removed everything
        if not gc.isenabled():
            stock(module)
            return
        others = [] if frozen_with_it else gc.get_objects()
        gc.disable()
        try:
            stock(module)
        finally:
            _freeze_all_but(others)
            gc.enable()

    vars(loader)["exec_module"] = exec_module


def _freeze_all_but(others):
    """Freeze all present objects except these."""
    if not others:
        gc.freeze()
        return
    import ctypes

    untrack, track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    untrack.argtypes = track.argtypes = [ctypes.py_object]
    untrack.restype = track.restype = None
    gc.collect()  # garbage of the import may hold frames of the program, and by them its objects
    for other in others:  # wrapped here: ctypes reads an attribute of each argument, and some warn then
        untrack(ctypes.py_object(other))
    gc.freeze()
    for other in others:
        if not gc.is_tracked(other):  # a dict is tracked anew when another thread puts something into it
            track(ctypes.py_object(other))


sys.meta_path[:0] = [_Finder("torch", True), _Finder("torch._dynamo", False)]
