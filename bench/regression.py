"""Counts the instructions of Cairn's inner loops under callgrind and fails on a regression.

    .venv/bin/python bench/regression.py             all cases against their baselines
    .venv/bin/python bench/regression.py --only digest open
    .venv/bin/python bench/regression.py --update    the current counts become the baselines

Unlike times, instruction counts are the same on a busy and on an idle machine, so an increase by
3 % can be distinguished from noise. They do not measure waiting: use compare.py for disks.

Exit status: 0 no regression, 1 a case exceeds its baseline by 3 %, 2 nothing could be counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASELINES = ROOT / "bench/regression/baselines.json"

# Runs differ by at most 0.3 %. With another compiler or library, counts differ without a
# regression.
LIMIT = 1.03
LIMIT_OF_ANOTHER_TOOLCHAIN = 2.0
# callgrind counts "rep movsb" and "rep stosb" as one instruction per byte, unlike vectors.
TUNABLES = (f"glibc.cpu.x86_rep_{name}_threshold=1073741824" for name in ("movsb", "stosb"))
COUNTED_COPIES = {"GLIBC_TUNABLES": ":".join(TUNABLES)}


class CannotCount(Exception):
    """Nothing was measured; the message states why."""


def run_cases(program: Path, cases: list[str]) -> tuple[str, dict[str, float], dict[str, str]]:
    """Runs the cases under callgrind. Returns toolchain, instructions per unit, unit names."""
    if shutil.which("valgrind") is None:
        raise CannotCount("valgrind is not installed; tools/setup.sh installs it")
    if not program.exists():
        raise CannotCount(f"{program} does not exist; build it with valgrind installed")
    with tempfile.TemporaryDirectory(prefix="cairn-regression-") as folder:
        out = Path(folder) / "callgrind"
        work = Path(folder) / "work"
        done = subprocess.run(
            [
                "valgrind",
                "--quiet",
                "--tool=callgrind",
                "--instr-atstart=no",
                "--vgdb=no",
                f"--callgrind-out-file={out}",
                program,
                work,
                *cases,
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | COUNTED_COPIES,
        )
        if done.returncode != 0:
            raise CannotCount(f"the cases failed: {done.stderr.strip()[-500:]}")
        toolchain, *lines = done.stdout.splitlines()
        counts = []
        for number, line in enumerate(lines, 1):
            case, unit, units = line.split()
            dump = out.with_name(f"{out.name}.{number}").read_text()
            counts.append((case, unit, int(units), read_dump(dump, case)))
    return toolchain.removeprefix("toolchain "), per_unit(counts), {c[0]: c[1] for c in counts}


def read_dump(text: str, case: str) -> int:
    """Returns the instructions in one dump of callgrind, which must belong to `case`."""
    trigger = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
    total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
    if not trigger or trigger.group(1) != case or not total:
        raise CannotCount(f"callgrind's dump does not belong to {case}")
    return int(total.group(1))


def per_unit(counts: list[tuple[str, str, int, int]]) -> dict[str, float]:
    """Returns instructions per unit; for a case that was counted twice, per additional unit."""
    seen: dict[str, list[tuple[int, int]]] = {}
    for case, _, units, instructions in counts:
        seen.setdefault(case, []).append((units, instructions))
    result = {}
    for case, points in seen.items():
        (units, instructions), *more = points
        for further_units, further_instructions in more:
            units, instructions = further_units - units, further_instructions - instructions
        result[case] = instructions / units
    return result


def compare(
    figures: dict[str, float], units: dict[str, str], baselines: dict[str, float], limit: float
) -> list[str]:
    """Prints one row per figure; returns the names above the limit or without a baseline."""
    lost = []
    print(f"{'CASE':<28} {'INSTRUCTIONS':>14}      {'A':<8} {'BASELINE':>14} {'RATIO':>7}")
    for name, figure in figures.items():
        baseline = baselines.get(name)
        ratio = figure / baseline if baseline else float("nan")
        fine = baseline is not None and ratio <= limit
        verdict = "" if fine else "  LOSS" if baseline is not None else "  NO BASELINE"
        shown = "-" if baseline is None else f"{baseline:,.3f}"
        unit = units.get(name, "")
        print(f"{name:<28} {figure:>14,.3f}      {unit:<8} {shown:>14} {ratio:>7.2f}{verdict}")
        if not fine:
            lost.append(name)
    return lost


def update(path: Path, toolchain: str, figures: dict[str, float]) -> None:
    rounded = {name: float(f"{figure:.5g}") for name, figure in figures.items()}
    document = {"toolchain": toolchain, "instructions": rounded}
    path.write_text(json.dumps(document, indent=2) + "\n")


def run(arguments: argparse.Namespace) -> int:
    toolchain, figures, units = run_cases(arguments.program, arguments.only)
    if arguments.update:
        update(arguments.baselines, toolchain, figures)
        print(f"regression: {len(figures)} baselines written to {arguments.baselines}")
        return 0
    stored = json.loads(arguments.baselines.read_text())
    same = stored["toolchain"] == toolchain
    limit = LIMIT if same else LIMIT_OF_ANOTHER_TOOLCHAIN
    lost = compare(figures, units, stored["instructions"], limit)
    if not same:
        print(f"counted with {toolchain}; the baselines were counted with {stored['toolchain']}")
    if lost:
        print(f"regression: above {limit} of the baseline: {', '.join(lost)}", file=sys.stderr)
        return 1
    print(f"regression: all {len(figures)} figures within {limit} of their baselines")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="CASE",
        help="names of cases in bench/regression/main.cc",
    )
    parser.add_argument("--update", action="store_true", help="rewrite the baselines")
    parser.add_argument("--baselines", type=Path, default=BASELINES, metavar="FILE")
    parser.add_argument(
        "--program", type=Path, default=ROOT / "build/bin/cairn_regression", metavar="FILE"
    )
    arguments = parser.parse_args()
    if arguments.update and arguments.only:
        parser.error("--update requires all cases")
    try:
        return run(arguments)
    except (CannotCount, OSError, subprocess.TimeoutExpired) as error:
        print(f"regression: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
