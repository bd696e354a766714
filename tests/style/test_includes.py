"""The direction of our includes, and that each public header stands alone."""

import os
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CAIRN_BUILD_DIR", ROOT / "build"))

# schema <- kv <- core <- cuda | python | tools | bench
MAY_INCLUDE = {
    "schema": {"schema"},
    "kv": {"schema", "kv"},
    "core": {"schema", "kv", "core"},
    "cuda": {"schema", "kv", "core", "cuda"},
    "python": {"schema", "kv", "core", "cuda", "python"},
    "tools": {"schema", "kv", "core", "cuda", "tools"},
    "bench": {"schema", "kv", "core", "cuda", "bench"},
}
LAYERS = ("schema", "kv", "core")  # those that others include
LICENCE = "// SPDX-License-Identifier: Apache-2.0"  # of the headers that are installed
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def sources(folder: str) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SOURCE_SUFFIXES)


def find_violations(folder: str, relative_path: str, text: str) -> list[str]:
    """Includes of `text`, a file of `folder`, that point the wrong way."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        target = found.group(1)
        owner = target.split("/")[0]
        where = f"{relative_path}:{number}"
        if owner == "..":
            problems.append(f"{where}: {target} is relative to the file, name it from the root")
        elif owner in MAY_INCLUDE and owner not in MAY_INCLUDE[folder]:
            problems.append(f"{where}: {folder}/ may not include {target}")
        elif owner in MAY_INCLUDE and owner != folder and "/internal/" in target:
            problems.append(f"{where}: {target} is internal to {owner}/")
    return problems


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_includes_point_down_the_layers(folder):
    problems = []
    for path in sources(folder):
        problems += find_violations(folder, str(path.relative_to(ROOT)), path.read_text())

    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("folder", "line", "wrong"),
    [
        ("kv", '#include "core/tensor/tensor.h"', "may not include"),
        ("core", '#include "tools/table.h"', "may not include"),
        ("tools", '#include "kv/index/internal/index.h"', "internal to kv/"),
        ("kv", '  #  include "../core/tensor.h"', "relative"),
        ("kv", '#include "kv/index/internal/index.h"', None),
        ("core", '#include "cairn_schema/step_generated.h"', None),
        ("schema", "#include <vector>", None),
    ],
)
def test_the_check_finds_wrong_includes_and_only_those(folder, line, wrong):
    problems = find_violations(folder, "file.cc", f"// a comment\n{line}\n")

    assert len(problems) == (wrong is not None)
    assert not wrong or wrong in problems[0]


def test_every_header_begins_with_pragma_once_and_says_what_it_is_for():
    problems = []
    for folder in MAY_INCLUDE:
        for path in sources(folder):
            if path.suffix not in {".h", ".cuh"}:
                continue
            lines = path.read_text().splitlines()
            if not lines or lines[0] != "#pragma once":
                problems.append(f"{path.relative_to(ROOT)}: the first line is not #pragma once")
                continue
            installed = folder in {"schema", "kv", "core", "cuda"} and "internal" not in path.parts
            if installed and lines[1] != LICENCE:
                problems.append(f"{path.relative_to(ROOT)}: the second line is not {LICENCE}")
            if not any(line.startswith("//") and line != LICENCE for line in lines[1:5]):
                problems.append(f"{path.relative_to(ROOT)}: no sentence at its top")

    assert not problems, "\n".join(problems)


def compile_alone(header: Path) -> str:
    """Compiles a file that includes only `header`, twice.

    Returns the compiler's complaint, or ''.
    """
    relative = header.relative_to(ROOT)
    flags = subprocess.run(["pkg-config", "--cflags", "fmt", "liburing", "libxxhash"],
                           capture_output=True, text=True, check=True).stdout
    done = subprocess.run(
        ["g++", "-std=c++23", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
         "-Wno-missing-field-initializers", f"-I{ROOT}", f"-I{BUILD}/schema/generated",
         *shlex.split(flags), "-x", "c++", "-"],
        input=f'#include "{relative}"\n#include "{relative}"\n', capture_output=True, text=True)
    return f"{relative}:\n{done.stderr}" if done.returncode else ""


def test_each_public_header_compiles_alone():
    headers = [path for folder in LAYERS for path in sorted((ROOT / folder).rglob("*.h"))
               if "internal" not in path.relative_to(ROOT).parts]
    assert len(headers) >= 10, "the list of headers looks wrong"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [complaint for complaint in pool.map(compile_alone, headers) if complaint]

    assert not complaints, "\n".join(complaints)
