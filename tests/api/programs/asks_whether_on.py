"""Print the heavy modules that a query of taskd's switch loads."""

import sys

from taskd.config.switch import is_enabled

assert not is_enabled()
heavy = ("torch", "zmq", "msgspec", "logging", "taskd.core", "taskd.wire")
print([name for name in heavy if name in sys.modules])
