"""The switch of taskd. Light on purpose: with taskd off, torchrun runs no other code of it."""

import os
from collections.abc import Mapping

_VARIABLE = "TASKD_PROCESS_ENABLE"


def is_enabled(env: Mapping[str, str] | None = None) -> bool:
    """Return whether `TASKD_PROCESS_ENABLE` is exactly `on`, as `libtaskd.so` reads it. Never raises.

    A value other than on, off or empty counts as off, with one warning, because it is probably a mistake.
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
