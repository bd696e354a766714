"""The blocks of code of the documentation, and what must exist before they run.

A page is one program: its blocks of Python run in order, in one folder, and so do the commands
`kv-dump` and `kv-admin` of its other blocks. What a page leaves out (a model, a store with steps)
is in tests/docs/setup/: common.py for all pages, and a file of the same name for a page. Such a
file has the parts `# page` and `# before block N`, where blocks are those of Python, from 1.

A block that cannot run here has a comment before it, with one of the REASONS:

    <!-- not run: needs a GPU -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SETUP = Path(__file__).resolve().parent / "setup"

REASONS = {
    "a synopsis",
    "needs a bucket",
    "needs a GPU",
    "needs a damaged store",
    "needs a second mount",
    "needs transformers",
    "needs wandb and MLflow",
    "needs torchdata",
    "runs until it is stopped",
}
BLOCK = re.compile(
    r"^(?P<mark><!-- not run: (?P<reason>[^>]*?) -->\n+)?"
    r"(?P<indent> *)```(?P<language>[\w-]*|\{[^}]*\}[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^(?:build/bin/)?(kv-(?:dump|admin) .*)$")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    reason: str | None  # why it is not run
    line: int

    def commands(self) -> list[str]:
        """The commands of our programs. If some lines have a prompt, the others are output."""
        lines = self.code.splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found = [COMMAND.match(line.strip()) for line in prompted or lines]
        return [match[1] for match in found if match]


def pages() -> list[Path]:
    """Every page of the site, without the generated reference."""
    return [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if not {"reference", "site"} & set(path.relative_to(DOCS).parts)
    ]


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] for line in match["code"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(match["language"], code, match["reason"], line))
    return found


def setup_of(page: Path) -> dict[int, str]:
    """What runs before each block of Python, by its number; 0 is the beginning of the page."""
    path = SETUP / page.relative_to(DOCS).with_suffix(".py")
    if not path.is_file():
        return {}
    parts = re.split(r"^# (?:page|before block (\d+))\n", path.read_text(), flags=re.MULTILINE)
    return {int(number or 0): code for number, code in zip(parts[1::2], parts[2::2])}
