"""What several commands read from their command line."""

import argparse
from typing import NoReturn

from taskd.config.address import Address, parse_address


def manager_argument(text: str) -> Address:
    """The value of `--manager`."""
    address = parse_address(text)
    if address is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected host:port, like node0:9601 or [::1]:9601")
    return address


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Say it, and leave."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")
