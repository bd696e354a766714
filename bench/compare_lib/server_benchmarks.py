"""The benchmarks of the servers themselves, and stores in RADOS; for bench/object_stores.py.

The benchmarks transfer their own bytes, and report the time without the start of the program.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from compare_lib.bucket_contenders import DEPTH, PART_BYTES, Cairn, Contender, Rest, State

WEED = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "weed"
RADOS_OBJECT_BYTES = 16 << 20
RADOS_DEPTH = 8
"""The defaults of Cairn's stores in RADOS."""


class ServerBenchmark(Contender):
    works = ("save", "load")
    object_bytes: int

    def prepare(self, work: str, state: State) -> None:
        self.count = max(1, sum(t.nbytes for t in state.values()) // self.object_bytes)

    def run(self, command: list[str | Path], seconds: str, transferred: str, unit: int) -> None:
        """Takes seconds, and the number of units transferred, from what the command prints."""
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        text = done.stdout + done.stderr
        time, count = re.search(seconds, text), re.search(transferred, text)
        if time is None or count is None:
            raise RuntimeError(f"{command[0]} printed: {text}")
        self.own_result = float(time[1]), int(count[1]) * unit


class WeedBenchmark(ServerBenchmark):
    name = "weed benchmark"
    settings = "writes to and reads from the volume servers, without the S3 interface"
    object_bytes = PART_BYTES

    def _run(self, work: str) -> None:
        # The list of what was written is needed by the process that reads it.
        written = self.memory.parent / f"weed-{os.environ['CAIRN_TEST_SEAWEED_MASTER']}"
        self.run(
            [WEED, "benchmark", "-master", os.environ["CAIRN_TEST_SEAWEED_MASTER"],
             "-c", str(DEPTH), "-n", str(self.count), "-size", str(PART_BYTES),
             "-collection", self.prefix, "-list", written, work],
            r"Time taken for tests: +([\d.]+)", r"Completed requests: +(\d+)", PART_BYTES,
        )  # fmt: skip

    def save(self, state: State) -> None:
        self._run("-writeOnly")

    def load(self, targets: State) -> Rest | None:
        self._run("-readOnly")
        return None


class RadosBench(ServerBenchmark):
    name = "rados bench"
    settings = "write, and seq, which compares what it reads with what it wrote"
    object_bytes = RADOS_OBJECT_BYTES

    def _run(self, *work: str) -> None:
        self.run(
            ["rados", "-p", self.bucket, "bench", "600", *work, "-t", str(RADOS_DEPTH),
             "--run-name", self.prefix],
            r"Total time run: +([\d.]+)", r"Total (?:writes|reads) made: +(\d+)",
            RADOS_OBJECT_BYTES,
        )  # fmt: skip

    def save(self, state: State) -> None:
        self._run("write", "-b", str(RADOS_OBJECT_BYTES), "--max-objects", str(self.count),
                  "--no-cleanup")  # fmt: skip

    def load(self, targets: State) -> Rest | None:
        self._run("seq")
        return None


class CairnInRados(Cairn):
    settings = Cairn.settings + "; no gateway"

    @property
    def address(self) -> str:
        return f"rados:{self.bucket}/{self.prefix}?stripe={RADOS_OBJECT_BYTES}"
