"""Uses the plugin as a rendezvous, and prints its error."""

from taskd.errors import ConfigError
from taskd.python.adaptor.patch import handlers

try:
    handlers()(None)
except ConfigError as error:
    print(error)
