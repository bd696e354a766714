"""The blocks of code of the documentation, and what must exist before they run.

A page is one program: its blocks of Python run in order, in one folder, and so do the commands
`kv-dump`, `kv-admin` and `torchrun` of its other blocks. What a page leaves out (a model, a store
with steps) is in tests/docs/setup/: common.py for all pages, and a file of the same name for one.
Such a file has the parts `# page`, `# before block N`, where blocks are those of Python, from 1,
`# before command N` and `# after the page`, which asserts what the page promises. PLACES are
absolute paths of the page that are replaced, and `clean_up` is called in any case.

A block that cannot run here has a comment before it, with one of the REASONS, and one that needs
more than what the tests install is skipped where that is missing:

    <!-- not run: needs a GPU -->
    <!-- runs with: transformers -->
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNNER = Path(__file__).resolve().with_name("run_pages.py")
SETUP = Path(__file__).resolve().parent / "setup"

REASONS = {
    "a synopsis",
    "needs a GPU",
    "needs a bucket",
    "needs a scheduler",
    "needs a second mount",
}
BLOCK = re.compile(
    r"^(?:<!-- (?:not run: (?P<reason>[^>]*?)|runs with: (?P<libraries>[^>]*?)) -->\n+)?"
    r"(?P<indent> *)```(?P<language>[\w-]*|\{[^}]*\}[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^(?:build/bin/)?((?:kv-(?:dump|admin)|torchrun) .*)$")
VERB = re.compile(r"^(kv-(?:dump|admin) [a-z][\w-]*)", re.MULTILINE)
# The modules that the pages of docs/integrations need.
LIBRARIES = {
    "dcp": ("torch",),
    "deepspeed": ("deepspeed",),
    "huggingface": ("transformers", "peft", "diffusers"),
    "jax": ("jax", "orbax.checkpoint"),
    "lightning": ("pytorch_lightning",),
    "megatron": ("megatron.core",),
    "ray": ("ray.train",),
    "torchao": ("torchao",),
    "torchtitan": ("torchtitan", "triton"),
    "trainer": ("transformers", "accelerate"),
}
PART = r"^# (page|before (?:block|command) \d+|after the page)\n"


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    reason: str | None  # why it is not run
    libraries: tuple[str, ...]  # the modules that it needs
    line: int

    def is_program(self) -> bool:
        """Whether it runs somewhere."""
        return self.reason is None and bool(self.language == "python" or self.commands())

    def is_missing(self) -> str | None:
        """The library that it needs and that is not installed here."""
        return next((name for name in self.libraries if not is_installed(name)), None)

    def commands(self) -> list[str]:
        """The commands of our programs, and those that run our examples. If some lines have a
        prompt, the others are output. Of a synopsis, the help of each verb."""
        if self.reason == "a synopsis":
            return [f"{verb} --help" for verb in dict.fromkeys(VERB.findall(self.code))]
        lines = self.code.splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found = [COMMAND.match(line.strip()) for line in prompted or lines]
        return [match[1] for match in found if match]


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of its package
        return False


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
        libraries = tuple((match["libraries"] or "").replace(",", " ").split())
        found.append(Block(match["language"], code, match["reason"], libraries, line))
    return found


def setup_of(page: Path) -> dict[str, str]:
    """The parts of the setup of a page by their titles, such as `before block 1`."""
    path = SETUP / page.relative_to(DOCS).with_suffix(".py")
    if not path.is_file():
        return {}
    parts = re.split(PART, path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def run_pages(folder: Path, names: list[str]) -> list[dict]:
    """Runs these pages, and returns what run_pages.py prints about each. None may fail."""
    paths = [ROOT / "tests" / name for name in ("docs", "integrations", "tools")]
    paths.append(ROOT / "build" / "python")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", RUNNER, folder, *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [f"{result['page']}: {result['error']}" for result in results if result["error"]]
    assert not failed, "\n".join(failed)
    assert [result["page"] for result in results] == names, done.stderr
    return results
