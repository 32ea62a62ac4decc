"""Print the modules that `import taskd` loads."""

import sys

before = set(sys.modules)
import taskd  # noqa: E402

dir(taskd)
assert taskd.__version__
print(sorted(set(sys.modules) - before - {"typing"}))
