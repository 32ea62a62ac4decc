"""Command line parsing that several commands share."""

import argparse
from typing import NoReturn

from taskd.config.address import Address, parse_address


def manager_argument(text: str) -> Address:
    """Parse the value of `--manager`. Raises `ArgumentTypeError`."""
    address = parse_address(text)
    if address is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected host:port, like node0:9601 or [::1]:9601")
    return address


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error on standard error, and exit with code 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")
