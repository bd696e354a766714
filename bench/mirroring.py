#!/usr/bin/env python
"""Measures how long a step that is saved to a disk takes to be in its mirror in a bucket.

    .venv/bin/python bench/mirroring.py --dir /mnt/disk/mirror

Starts SeaweedFS in --dir, and saves a state of --mib, all of which changes, every --every seconds
with mirror=. Prints the lag of each step (from the return of the save until the step is in the
mirror), the steps that were skipped because the mirror was slower than the saves, and the memory
that the process has taken in addition to the state.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

import torch  # noqa: E402

import cairn  # noqa: E402

SEAWEED = ROOT / "tests" / "support" / "seaweed.sh"


def resident_mib() -> float:
    """The highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(arguments: argparse.Namespace, disk: Path, bucket: str) -> dict[str, object]:
    elements = (arguments.mib << 20) // 4 // 16
    state = {f"w{i}": torch.zeros(elements, dtype=torch.int32) for i in range(16)}
    lags: list[float | None] = [None] * arguments.saves
    stalls = []

    def await_mirrored(number: int, handle: cairn.SaveHandle, saved: float) -> None:
        try:
            handle.mirrored(timeout=600)
            lags[number] = time.perf_counter() - saved
        except cairn.Unavailable:
            pass  # skipped

    waiting = []
    for tensor in state.values():
        tensor.random_()
    before = resident_mib()
    with cairn.open(disk, mode="a", grace=0) as store:
        begin = time.perf_counter()
        for number in range(arguments.saves):
            for tensor in state.values():
                tensor.add_(1)
            time.sleep(max(0.0, begin + number * arguments.every - time.perf_counter()))
            start = time.perf_counter()
            handle = store.save_async(number, state, incremental=False, mirror=f"{bucket}/mirror")
            handle.result()
            saved = time.perf_counter()
            stalls.append(saved - start)
            waiter = threading.Thread(target=await_mirrored, args=(number, handle, saved))
            waiter.start()
            waiting.append(waiter)
            store.prune(keep_last=2)
        for waiter in waiting:
            waiter.join()
        peak = resident_mib()
    arrived = [lag for lag in lags if lag is not None]
    with cairn.open(f"{bucket}/mirror") as mirror:
        assert mirror.steps()[-1] == arguments.saves - 1
    return {
        "saves": arguments.saves,
        "mib": arguments.mib,
        "every_s": arguments.every,
        "save_s": statistics.median(stalls),
        "lag_median_s": statistics.median(arrived),
        "lag_max_s": max(arrived),
        "skipped": lags.count(None),
        "memory_beyond_state_mib": round(peak - before, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", required=True, help="an existing directory for store and server")
    parser.add_argument("--mib", type=int, default=256, help="size of the state (256)")
    parser.add_argument("--every", type=float, default=3, help="seconds between saves (3)")
    parser.add_argument("--saves", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as work:
        folder = Path(work) / "server"
        subprocess.run([SEAWEED, "start", folder], check=True)
        try:
            text = (folder / "environment").read_text()
            server = dict(re.findall(r"^export (\w+)=(.*)$", text, re.M))
            os.environ.update(server)
            bucket = f"s3://{server['CAIRN_TEST_S3_BUCKET']}"
            print(json.dumps(measure(arguments, Path(work) / "store", bucket)))
        finally:
            subprocess.run([SEAWEED, "stop", folder], check=True)


if __name__ == "__main__":
    main()
