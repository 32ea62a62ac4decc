"""taskd's own options on torchrun's command line: they stand for settings.

Rules:

1. torchrun's parser learns them when it parses, because it does not exist earlier. It learns them only if one of these
   words or a request for help is there. Otherwise its messages on wrong usage stay word for word its own.
2. An option sets its variable for this process and its children, nothing else.
"""

import argparse
import sys
from typing import Any, Final

from taskd.config import settings
from taskd.config.process import ask_for
from taskd.config.schema import Setting
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

OPTIONS: Final = (
    (("--node-check", "--node_check", "--network-check", "--network_check"), settings.NODE_CHECK),
    (("--exclude-straggler", "--exclude_straggler"), settings.EXCLUDE_STRAGGLER),
)
"""Accepted words for each setting; DLRover's users know the later ones."""
_TORCHRUNS: Final = ("--rdzv-backend", "--nproc-per-node")
"""Options that identify torchrun's parser among all others."""
_OURS: Final = frozenset(word for words, _ in OPTIONS for word in words)
_HELP: Final = frozenset(("-h", "--help"))
_METHOD: Final = "parse_known_args"


def add_options() -> None:
    """Make torchrun's next parser accept these options."""
    stock = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser: argparse.ArgumentParser, args: Any = None, *_: Any, **__: Any) -> Steps:
        if all(option in parser._option_string_actions for option in _TORCHRUNS):
            setattr(argparse.ArgumentParser, _METHOD, stock)
            _extend(parser, set(sys.argv[1:] if args is None else args))
        return (yield ORIGINAL)

    setattr(argparse.ArgumentParser, _METHOD, around(stock, parse_known_args))


def _extend(parser: argparse.ArgumentParser, arguments: set[str]) -> None:
    if arguments.isdisjoint(_OURS) and arguments.isdisjoint(_HELP):
        return
    group = parser.add_argument_group("taskd")
    for words, setting in OPTIONS:
        if not any(word in parser._option_string_actions for word in words):
            group.add_argument(*words, action=_Ask, nargs=0, const=setting, help=setting.meaning)


class _Ask(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        setting = self.const
        assert isinstance(setting, Setting)
        ask_for(setting)
