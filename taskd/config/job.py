"""The name of the job."""

import os
from typing import Final

from taskd.config import settings
from taskd.config.reading import Source
from taskd.errors import ConfigError

MAX_JOB_ID_BYTES: Final = 200
"""Longest name of a job. It also names a folder, followed by a number if two jobs share the name."""


def job_id(source: Source) -> str:
    """Return the job's name: key, `TASKD_JOB_ID`, `MINDX_TASK_ID`, or default.

    Raises `ConfigError` if the two variables differ and no key is given, or if the name is not allowed.
    """
    given, cluster = source.env.get("TASKD_JOB_ID"), source.env.get("MINDX_TASK_ID")
    if source.keys.get("job_id") is None and given and cluster and given != cluster:
        raise ConfigError(
            f"TASKD_JOB_ID is {given!r} and MINDX_TASK_ID is {cluster!r}, expected one name for the job; unset one"
        )
    env = {"TASKD_JOB_ID": given or cluster or ""}
    name = Source(env, source.keys).text(settings.JOB_ID)
    assert name is not None, "the setting has a default"
    if not name.isprintable() or not name.strip("./ ") or len(os.fsencode(name)) > MAX_JOB_ID_BYTES:
        expected = f"a name: printable, at most {MAX_JOB_ID_BYTES} bytes, and not of dots and slashes alone"
        raise Source(env, source.keys).refuse(settings.JOB_ID, name, expected)
    return name
