"""Takes the plugin for a rendezvous, and tells what it says."""

from taskd.errors import ConfigError
from taskd.python.adaptor.patch import handlers

try:
    handlers()(None)
except ConfigError as error:
    print(error)
