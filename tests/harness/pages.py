"""Names in the pages: variables, files, links, and commands with their options."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import ROOT, pages

PAGES: Final = [*pages(), ROOT / "patches" / "README.md"]
EXAMPLES: Final = sorted(path for path in (ROOT / "examples").iterdir() if path.is_file())
FOLDERS: Final = "taskd|tests|scripts|docs|benchmarks|examples|csrc|patches"
FENCE: Final = re.compile(r"^ *```.*?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN: Final = re.compile(r"`([^`]+)`")
COMMAND: Final = re.compile(
    r"python -m (?P<module>(?:benchmarks|tests|taskd)\.[\w.]+)"
    r"|(?:bash|python) (?P<script>scripts/[\w-]+\.(?:sh|py))"
    r"|(?<![\w./-])taskd (?P<word>[a-z]+)(?: (?P<scenario>[a-z][a-z-]+))?"
    r"|(?P<torchrun>(?<![\w./-])torchrun)\b"
)
END: Final = re.compile(r" #|   |;|>|&| [\w./]+\.py\b|$", re.MULTILINE)
"""End of a command's words: a comment, a description, another command, or a training script."""
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@dataclass(frozen=True)
class Named:
    """A command in a page: the started program, and its options."""

    kind: str
    name: str
    scenario: str
    options: tuple[str, ...]
    text: str


def variables(text: str) -> set[str]:
    """Return variables of taskd's. One that ends in `_` stands for all with that prefix."""
    return set(re.findall(r"\bTASKD_[A-Z][A-Z_0-9]*", text))


def files(text: str) -> set[str]:
    """Return files and folders of this repository, by their paths from its root."""
    return set(re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]*\w)", text))


def links(text: str) -> set[str]:
    """Return targets of links to other pages, or within the page."""
    prose = FENCE.sub("", text)
    return {target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"\w+:", target)}


def headings(text: str) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def code(text: str) -> Iterator[str]:
    """Yield each line of code, and each piece of it within the prose."""
    for block in FENCE.findall(text):
        yield from block.splitlines()
    for piece in SPAN.findall(FENCE.sub("", text)):
        yield " ".join(piece.split())


def commands(text: str) -> Iterator[Named]:
    """Yield the commands in a page."""
    for line in code(text):
        starts = [*COMMAND.finditer(line)]
        for start, until in zip(starts, [*(after.start() for after in starts[1:]), len(line)], strict=False):
            rest = line[start.end() : until]
            end = END.search(rest)
            assert end is not None
            kind = start.lastgroup if start.lastgroup != "scenario" else "word"
            assert kind is not None
            options = tuple(OPTION.findall(rest[: end.start()]))
            yield Named(kind, start[kind], start["scenario"] or "", options, line.strip())
