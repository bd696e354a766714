#!/usr/bin/env python
"""Compares Cairn with the checkpoints of training libraries, each in the same run.

    .venv/bin/python bench/integrations.py --dir /mnt/disk/compare --out docs/performance
    .venv/bin/python bench/integrations.py --dir /mnt/disk/compare ray --parameters 2e6

Each library trains a model for ten steps and saves each of them, with its own checkpoints and with
Cairn: once with all parameters, once with nine tenths of the layers frozen. Then it resumes in new
processes, and the resumed state is compared with the saved one. The order of the contenders
rotates.

With --out, the page and the JSON are written, after each library. `--add-to FILE` keeps the figures
of the libraries that are not measured. A library that is not installed or fails is reported, and
the others continue; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

from compare_lib import machine  # noqa: E402
from integrations_lib.measure import LIBRARIES, Failed, Options, measure_library  # noqa: E402
from integrations_lib.report import print_tables, write_page  # noqa: E402

SETTINGS = {
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "RAY_raylet_start_wait_time_s": "200",
    "TOKENIZERS_PARALLELISM": "false",
}


def _measure(name: str, options: Options, answer: Path) -> None:
    """In a new process, because it imports the library."""
    try:
        found = measure_library(name, options)
    except (Failed, ImportError) as error:
        found = {"error": str(error)}
    except Exception:
        found = {"error": traceback.format_exc()}
    answer.write_text(json.dumps(found))


def measure(name: str, options: Options) -> dict[str, Any]:
    answer = options.folder / f"{name}.json"
    answer.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(
        target=_measure, args=(name, options, answer)
    )
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():
            process.terminate()  # it ends its own processes
            process.join()
    if not answer.exists():
        return {"error": f"its process died with status {process.exitcode}"}
    return json.loads(answer.read_text())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("libraries", nargs="*", metavar="LIBRARY", help=f"by default all: {', '.join(LIBRARIES)}")
    add("--dir", type=Path, required=True, help="working directory on the disk")
    add("--out", type=Path, help="directory for integrations.md and integrations.json")
    add("--parameters", type=float, default=25e6, help="of the model (25e6)")
    add("--repeat", type=int, default=3, help="runs of each contender (3)")
    add("--add-to", type=Path, help="an integrations.json whose other libraries are kept")
    options = parser.parse_args()
    unknown = sorted(set(options.libraries) - LIBRARIES.keys())
    if unknown:
        parser.error(f"unknown libraries {unknown}; there are {list(LIBRARIES)}")
    options.libraries = options.libraries or list(LIBRARIES)
    return options


def main() -> int:
    options = _parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.dir = options.dir.resolve()
    for folder in filter(None, (options.dir, options.out)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    result: dict[str, Any] = json.loads(options.add_to.read_text()) if options.add_to else {}
    result |= {"machine": machine.machine(options.dir), "versions": machine.versions()}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    scratch = Path(tempfile.mkdtemp(prefix="integrations-", dir=options.dir))
    failed = []
    try:
        for name in options.libraries:
            how = Options(scratch, options.parameters, options.repeat)
            found = measure(name, how)
            if "error" in found:
                failed.append(name)
                print(f"{name} has failed: {found['error']}", file=sys.stderr, flush=True)
                continue
            measured = f"{date}, {result['versions']['cairn']}"
            result.setdefault("libraries", {})[name] = {"measured": measured, **found}
            print_tables({name: found})
            if options.out is not None:
                write_page(result, options.out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
