"""What the Pythons that tests start do first: they import torch without collecting garbage meanwhile.

Rules:

1. `scripts/test.sh` puts this module and a `.pth` file for it into the environment's site-packages: no `sitecustomize`,
   no PYTHONPATH, nothing that a program or taskd itself could also want. Only processes with the mark of a test in
   their environment (`tests/leaks.py`) load it.
2. During the first import of torch there are no collections. After it all is as ever, with what there was then frozen:
   collected neither later nor at the end of the process. All that a program makes afterwards is collected as ever.
   Three tenths of what such a process costs are collections of torch's own objects; they find next to nothing.
3. It leaves nothing behind: no finder, no loader of its own, no setting.
"""

import gc
import sys


class _TorchFinder:
    """Finds torch as the others do, once."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None:
                _quicken(spec.loader)
                return spec
        return None


def _quicken(loader):
    """Shadow `exec_module` of this one loader object for this one import."""
    stock = getattr(loader, "exec_module", None)
    if stock is None:
        return

    def exec_module(module):
        vars(loader).pop("exec_module", None)  # taskd may have done the same over this, and have taken all away
        if not gc.isenabled():
            stock(module)
            return
        gc.disable()
        try:
            stock(module)
        finally:
            gc.freeze()
            gc.enable()

    vars(loader)["exec_module"] = exec_module


sys.meta_path.insert(0, _TorchFinder())
