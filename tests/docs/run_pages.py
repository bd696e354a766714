"""Runs the blocks of pages, each page in a separate process and folder.

    python tests/docs/run_pages.py FOLDER PAGE...

Imports torch once and forks for each page. Prints one line of JSON per page: its name, the numbers
of blocks and commands, the blocks that were skipped, and the error, or null.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import traceback

import cairn
import cairn.dcp
import cairn.torch
import torch
from pages import DOCS, ROOT, SETUP, Block, blocks_of, setup_of

TIMEOUT_SECONDS = 600
COMMANDS = f"""
export PATH={ROOT / "build" / "bin"}:$PATH
torchrun() {{ {sys.executable} -m torch.distributed.run --standalone "$@"; }}
"""


class Page:
    """The program that a page is."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._setup = setup_of(path)
        self.names: dict = {"__name__": "page", "ROOT": ROOT}
        self.blocks = self.commands = 0
        self.skipped: list[str] = []

    def run(self) -> None:
        os.symlink(ROOT / "examples", "examples")
        common = SETUP / "common.py"
        exec(compile(common.read_text(), common, "exec"), self.names)
        self._prepare("page")
        for block in blocks_of(self._path.read_text()):
            if block.reason is None and block.language == "python":
                self.blocks += 1
                missing = block.is_missing()
                if missing is None:
                    self._run_python(block)
                else:
                    self.skipped.append(f"line {block.line} needs {missing}")
            elif block.reason in (None, "a synopsis"):
                for command in block.commands():
                    self._run_command(command, block.line)
        self._close()
        self._prepare("after the page")

    def _prepare(self, part: str) -> None:
        code = self._setup.get(part, "")
        exec(compile(code, f"{self._path.stem}, {part}", "exec"), self.names)

    def _run_python(self, block: Block) -> None:
        opens = "as store" in block.code or "store = cairn.open" in block.code
        if opens:
            self._close()
        elif re.search(r"\b(?:store|saver)[.,)]", block.code):
            self._open()
        self._prepare(f"before block {self.blocks}")
        program = "\n" * block.line + block.code  # errors have the lines of the page
        for place, replacement in self.names.get("PLACES", {}).items():
            program = program.replace(place, replacement)
        exec(compile(program, str(self._path), "exec"), self.names)

    def _open(self) -> None:
        if self.names.get("store") is None or self.names["store"].opened.is_closed:
            self.names["store"] = cairn.open("runs/gpt", mode="a")
            self.names["saver"] = cairn.torch.Saver(self.names["store"], every=100)

    def _close(self) -> None:
        for name in ("saver", "store"):
            opened = self.names.pop(name, None)
            if opened is not None:
                opened.close()

    def _run_command(self, command: str, line: int) -> None:
        self._close()
        self.commands += 1
        self._prepare(f"before command {self.commands}")
        runs_on = " --follow" in command or command.startswith("kv-dump serve ")
        ended = "timeout --foreground --preserve-status -s INT 3 " if runs_on else ""
        done = subprocess.run(
            ["bash", "-c", f"{COMMANDS}{ended}{command}"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        differs = command.startswith("kv-dump diff") and done.returncode == 1
        if done.returncode != 0 and not differs:
            raise RuntimeError(f"line {line}: {command}: {done.returncode}: {done.stderr}")


def run(path: pathlib.Path, folder: pathlib.Path) -> dict:
    folder.mkdir(parents=True)
    os.chdir(folder)
    page, error = Page(path), None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                page.run()
            finally:
                page.names.get("clean_up", lambda: None)()
    except BaseException:
        error = traceback.format_exc(limit=-4)
    name = path.relative_to(DOCS).as_posix()
    counts = {"blocks": page.blocks, "commands": page.commands, "skipped": page.skipped}
    return {"page": name, **counts, "error": error}


def main() -> None:
    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    for name in names:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                result = run(DOCS / name, pathlib.Path(folder) / name.replace("/", "-"))
                os.write(write, (json.dumps(result) + "\n").encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        died = {"page": name, "blocks": 0, "commands": 0, "skipped": [], "error": "it died"}
        print(text or json.dumps(died), end="" if text else "\n", flush=True)


if __name__ == "__main__":
    main()
