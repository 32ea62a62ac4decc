"""The command of a rank: what the user runs, and what a template runs in its stead.

Rules:

1. What this very interpreter runs as a script or module gets taskd into it, and so does the Python of this interpreter
   that another program starts (a wrapper). An interpreter with other options is left as it is.
2. Pure text: nothing is looked up on disk.
"""

import os.path
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from taskd.config.process import own_interpreter, starting_with, unwrapped, wrapped_by
from taskd.runtime.agent.ports import Command

START: Final = str(Path(__file__).resolve().parents[2] / "python" / "start")
"""The directory whose `sitecustomize` prepares a rank or a template."""
TEMPLATE: Final = "taskd.python.template"
"""The last argument of a template: by it, it is known from a rank, in lists of processes too."""
NUMA_REASON: Final = "torchrun binds ranks to NUMA nodes, which happens at a cold start"
"""Why no warm process can become a rank under `--numa-binding`."""


def parse_command(entrypoint: object, args: Sequence[object], interpreter: str) -> Command:
    """What torchrun's entrypoint and arguments mean. `interpreter` is the path of the Python that runs torchrun."""
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
    """Variables by which taskd gets into a rank of this command, or into the Python that its wrapper starts."""
    if not (command.python or command.wrapper):
        return {}
    return {**starting_with(START, env), **(wrapped_by(own_interpreter()) if command.wrapper else unwrapped(env))}


def template_arguments(command: Command | None) -> tuple[str, ...]:
    """Arguments after the interpreter of a template for ranks of this command; of one for no ranks, None."""
    program = ("-c", "") if command is None or not command.python else command.argv
    return ("-u", *program, TEMPLATE)


def _same_program(first: str, second: str) -> bool:
    return os.path.normpath(first) == os.path.normpath(second)
