"""Code blocks of the documentation: README.md, CONTRIBUTING.md and docs/**/*.md."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>[^`\n]*)$")
SHELL = ("bash", "console", "sh")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of its info string, and its text."""

    page: str
    line: int
    language: str
    info: str
    text: str

    @property
    def where(self) -> str:
        """`page:line`, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def no_run(self) -> str:
        """Why the block cannot be run here; empty if it can."""
        return self.info.partition("no-run:")[2].strip()

    @property
    def file(self) -> str:
        """The file that a reader is told to write the block to; empty if none."""
        match = re.search(r"\bfile=(\S+)", self.info)
        return match[1] if match else ""

    def commands(self) -> list[list[str]]:
        """Words of each command of a shell block, without comments; continuation lines are joined."""
        text = self.text.replace("\\\n", " ")
        lines = text.splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def pages() -> list[str]:
    """Return the pages of the documentation, relative to the root of the repository."""
    docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts]
    return [
        path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs)
    ]


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of one page in order."""
    found: list[Block] = []
    opened: tuple[re.Match[str], int] | None = None
    body: list[str] = []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        match = FENCE.match(line)
        if opened is None and match:
            opened, body = (match, number), []
        elif (
            opened is not None
            and match
            and not match["info"].strip()
            and match["marks"] >= opened[0]["marks"]
        ):
            language, _, info = opened[0]["info"].strip().partition(" ")
            indent = len(opened[0]["indent"])
            text = "\n".join(text_line[indent:] for text_line in body) + "\n"
            found.append(Block(page, opened[1], language, info.strip(), text))
            opened = None
        elif opened is not None:
            body.append(line)
    assert opened is None, f"{page}:{opened and opened[1]}: the fence is not closed"
    return found
