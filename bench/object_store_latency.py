#!/usr/bin/env python
"""Measures Cairn on a distant S3 server: what a delay of every request costs.

    .venv/bin/python bench/object_store_latency.py --dir /mnt/disk/objects --store /mnt/disk/million

Starts SeaweedFS in --dir and a proxy that delays every request by --delay. --store is a local store
with a step of many chunks, as `kv-bench open --dir D` leaves it in D; it is pushed to the server.
Each work runs in a new process. A time divided by the delay is an upper bound of the number of
requests that wait for each other, because it contains the work of client and server, too;
kv_round_trips_test counts them exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

from compare_lib.delay_proxy import __file__ as PROXY  # noqa: E402

KV_ADMIN = ROOT / "build" / "bin" / "kv-admin"
SEAWEED = ROOT / "tests" / "support" / "seaweed.sh"


def _child(work: str, address: str, nbytes: int) -> dict[str, float]:
    """Performs one work in this process; returns seconds by name."""
    import torch

    import cairn

    begin = time.perf_counter()
    if work == "open":
        with cairn.open(address) as store:
            first = store.read("layer.000000.weight")
            opened = time.perf_counter()
            some = store.read("layer.0000*.weight")
            loaded = time.perf_counter()
        assert len(first) == 1 and len(some) == 100, (len(first), len(some))
        return {"open and first key": opened - begin, "100 further keys": loaded - opened}
    count = max(1, nbytes >> 24)
    state = {f"w{i}": torch.zeros(1 << 22, dtype=torch.int32) for i in range(count)}
    if work == "save":
        for i, tensor in enumerate(state.values()):
            tensor.random_(generator=torch.Generator().manual_seed(i))
        with cairn.open(address, mode="a") as store:
            begin = time.perf_counter()
            store.save(len(store.steps()), state, incremental=False)
            large = time.perf_counter()
            store.save(len(store.steps()), {"small": torch.ones(10)}, incremental=False)
            return {"save": large - begin, "save of 40 bytes": time.perf_counter() - large}
    with cairn.open(address) as store:
        begin = time.perf_counter()
        store.load(state, step=0)
        return {"load": time.perf_counter() - begin}


def _run(work: str, address: str, nbytes: int, environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", work, "--address", address, "--bytes", str(nbytes)],
        env=os.environ | environment, stdout=subprocess.PIPE, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"object_store_latency.py: {work} failed")
    return json.loads(done.stdout.splitlines()[-1])


class Proxy:
    """A running proxy."""

    def __init__(self, endpoint: str, milliseconds: float) -> None:
        host, port = re.fullmatch(r"http://(.*):(\d+)", endpoint).groups()
        self._process = subprocess.Popen(
            [sys.executable, PROXY, host, port, str(milliseconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.endpoint = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=10)


def measure(arguments: argparse.Namespace, server: dict[str, str], work: Path) -> None:
    bucket = server["CAIRN_TEST_S3_BUCKET"]
    many = f"s3://{bucket}/many"
    subprocess.run(
        [KV_ADMIN, "push", arguments.store, many], env=os.environ | server, check=True, timeout=600
    )
    times: dict[tuple[str, str], list[float]] = {}

    def add(condition: str, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            times.setdefault((name, condition), []).append(value)

    endpoint = server["AWS_ENDPOINT_URL_S3"]
    proxies = {f"{ms:g} ms": Proxy(endpoint, ms) for ms in (0, arguments.delay)}
    for turn in range(arguments.rounds):
        for delay, proxy in proxies.items():
            environment = server | {"AWS_ENDPOINT_URL_S3": proxy.endpoint}
            large = f"s3://{bucket}/large-{turn}-{delay.split()[0]}"
            add(delay, _run("open", many, 0, environment))
            cache = work / f"cache-{turn}-{delay}"
            environment["CAIRN_CACHE"] = str(cache)
            _run("open", many, 0, environment)  # fills the cache
            add(f"{delay}, warm cache", _run("open", many, 0, environment))
            shutil.rmtree(cache)
            del environment["CAIRN_CACHE"]
            add(delay, _run("save", large, arguments.bytes, environment))
            add(delay, _run("load", large, arguments.bytes, environment))
    for proxy in proxies.values():
        proxy.stop()
    print(f"median of {arguments.rounds} rounds; save and load: {arguments.bytes >> 20} MiB")
    for (name, condition), values in times.items():
        milliseconds = statistics.median(values) * 1e3
        delays = f", {milliseconds / arguments.delay:.1f} delays"
        print(f"{name}, {condition}: {milliseconds:.0f} ms{delays * (condition[0] != '0')}")
    for name in ("save", "load"):
        near, far = (statistics.median(times[name, delay]) for delay in proxies)
        print(f"{name}: {near / far:.2f} of the rate without the delay")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", help="an existing directory for the server")
    parser.add_argument("--store", help="a local store with a step of many chunks")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="size of the state (1 GiB)")
    parser.add_argument("--delay", type=float, default=20, help="milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_child(arguments.child, arguments.address, arguments.bytes)))
        return
    if not arguments.dir or not arguments.store:
        parser.error("--dir and --store are required")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as work:
        folder = Path(work) / "server"
        subprocess.run([SEAWEED, "start", folder], check=True)
        try:
            lines = (folder / "environment").read_text()
            measure(arguments, dict(re.findall(r"^export (\w+)=(.*)$", lines, re.M)), Path(work))
        finally:
            subprocess.run([SEAWEED, "stop", folder], check=True)


if __name__ == "__main__":
    main()
