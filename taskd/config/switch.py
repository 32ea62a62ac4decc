"""Whether taskd is switched on. Light on purpose: this is all that a torchrun without taskd ever runs of it."""

import os
from collections.abc import Mapping

_VARIABLE = "TASKD_PROCESS_ENABLE"


def is_enabled(env: Mapping[str, str] | None = None) -> bool:
    """Whether `TASKD_PROCESS_ENABLE` is exactly `on`, as `libtaskd.so` reads it. Never raises.

    A value that is neither on, off nor empty counts as off and leaves one warning: it was meant to say something.
    """
    value = (os.environ if env is None else env).get(_VARIABLE, "")
    if value not in ("", "on", "off"):
        import logging

        logging.getLogger(__name__).warning(
            "%s: found %r, expected on or off; taskd stays off, write %s=on to switch it on",
            _VARIABLE,
            value,
            _VARIABLE,
        )
    return value == "on"
