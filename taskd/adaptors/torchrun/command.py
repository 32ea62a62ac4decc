"""The command of a rank: the user's program, and the one that a template runs in its stead.

Rules:

1. taskd enters a script or module that torchrun's own interpreter runs. It also enters a Python of this interpreter
   that another program (a wrapper) starts. An interpreter with other options is left as it is.
2. Pure text: nothing is read from disk.
"""

import os.path
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from taskd.config.process import own_interpreter, starting_with, unwrapped, wrapped_by
from taskd.runtime.agent.ports import Command

START: Final = str(Path(__file__).resolve().parents[2] / "python" / "start")
"""Directory whose `sitecustomize` prepares a rank or a template."""
TEMPLATE: Final = "taskd.python.template"
"""Last argument of a template; it distinguishes a template from a rank, also in process lists."""
NUMA_REASON: Final = "torchrun binds ranks to NUMA nodes, which happens at a cold start"
"""Reason why no warm process can become a rank under `--numa-binding`."""


def parse_command(entrypoint: object, args: Sequence[object], interpreter: str) -> Command:
    """Parse torchrun's entrypoint and arguments. `interpreter` is the path of the Python that runs torchrun."""
    argv = tuple(str(arg) for arg in args)
    if not isinstance(entrypoint, str):
        return Command(argv, False, "the entrypoint is a function, not a script")
    if not _same_program(entrypoint, interpreter):
        reason = f"{entrypoint} is not torchrun's own Python ({interpreter})"
        return Command((entrypoint, *argv), False, reason, wrapper=True)
    script = argv[1:] if argv[:1] == ("-u",) else argv
    if script[:1] == ("-m",) and len(script) > 1:
        return Command(script, True)
    if script and not script[0].startswith("-"):
        return Command(script, True)
    return Command(
        (entrypoint, *argv), False, f"the interpreter is given {script[:1] or 'no script'}, expected a script or -m"
    )


def injection(command: Command, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that load taskd into a rank of this command, or into the Python that its wrapper starts."""
    if not (command.python or command.wrapper):
        return {}
    return {**starting_with(START, env), **(wrapped_by(own_interpreter()) if command.wrapper else unwrapped(env))}


def template_arguments(command: Command | None) -> tuple[str, ...]:
    """Return a template's arguments after the interpreter, for ranks of this command; None stands for no ranks."""
    program = ("-c", "") if command is None or not command.python else command.argv
    return ("-u", *program, TEMPLATE)


def _same_program(first: str, second: str) -> bool:
    return os.path.normpath(first) == os.path.normpath(second)
