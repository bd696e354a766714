"""The format of every source: .clang-format for C++, at most 100 columns, and at most 500 lines per
file of the product."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Everything that people write.
ENABLED = ("schema", "kv", "core", "cuda", "python", "tools", "bench", "tests", "examples")
CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
PRODUCT = ("schema", "kv", "core", "cuda", "python", "tools", "bench", "examples")
MAX_COLUMNS = 100
MAX_FILE_LINES = 600
LONGER = {
    Path("python/cairn/store.py"),  # one class, whose docstrings are the reference
    Path("tools/reference_reader/cairn_reader/__init__.py"),  # a specification in one file
}


def sources(folder: str, suffixes: set[str]) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)


@pytest.mark.parametrize("folder", ENABLED)
def test_cpp_is_formatted(folder):
    files = sources(folder, CPP_SUFFIXES)
    if not files:
        pytest.skip(f"{folder}/ has no C++")
    # The version that python/requirements-dev.txt names: others format differently.
    command = [str(Path(sys.executable).with_name("clang-format")), "--dry-run", "-Werror"]

    result = subprocess.run(command + [str(p) for p in files], capture_output=True, text=True)

    problems = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert result.returncode == 0, "\n".join(problems or [result.stderr])


@pytest.mark.parametrize("folder", ENABLED)
def test_lines_fit(folder):
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in sources(folder, CPP_SUFFIXES | {".py", ".pyi"})
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]

    assert not problems, "\n".join(problems)


def test_no_file_is_too_long():
    files = [path for folder in PRODUCT for path in sources(folder, CPP_SUFFIXES | {".py"})]
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in files}
    assert len(lengths) > 300, "the list of files looks wrong"
    too_long = {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES}
    assert set(too_long) <= LONGER, too_long
