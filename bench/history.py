#!/usr/bin/env python
"""Measures the space of the steps of a bf16 fine-tune, and the time of saves, loads and pulls.

    .venv/bin/python bench/history.py --dir /mnt/disk/history --out docs/performance

1. The demo's GPT is trained in bf16 with fp32 masters and AdamW, on text. For each learning rate,
   every step of the weights is saved completely, with its changed pages, and with deltas. The same
   steps are compressed with zstd, ZipNN, and as XOR with the step before.
2. Of a state with LoRA adapters and of an embedding, only these adapters and some rows change.
3. In a state of --mib, elements are changed at random as such a step does. Saves, loads and pulls
   are measured next to copies and digests of the same bytes.
4. build/bin/cairn_delta_bench encodes and decodes such a step in memory, on one core, next to the
   other ways to store it.
5. kv-dump inspects 100 steps of 20,000 tensors.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python"), str(ROOT / "tools" / "demo")]

import numpy  # noqa: E402
import torch  # noqa: E402
import zipnn  # noqa: E402
import zstandard  # noqa: E402
from compare_lib import machine, page_cache  # noqa: E402
from corpus import next_batch, read_documents  # noqa: E402
from gpt import GPT, Config  # noqa: E402
from history_report import write_report  # noqa: E402

import cairn  # noqa: E402

State = dict[str, torch.Tensor]
RATES = (3e-7, 1e-6, 2e-6, 4e-6, 1e-5, 3e-5, 1e-4)
DENSITIES = (0.015, 0.04, 0.1)
PARTS = ("space", "regions", "time", "codec", "programs")


def payload(tensor: torch.Tensor) -> numpy.ndarray:
    return tensor.view(torch.uint8).numpy().reshape(-1)


class FineTune:
    """A GPT in bf16 whose fp32 masters AdamW updates."""

    def __init__(self, width: int, layers: int) -> None:
        torch.manual_seed(1)
        random.seed(1)
        self._config = Config(width=width, layers=layers, dropout=0.0)
        self._model = GPT(self._config)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._text = torch.cat(list(read_documents().values()))

    def train(self, steps: int, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        for _ in range(steps):
            masters = [parameter.detach().clone() for parameter in self._model.parameters()]
            with torch.no_grad():  # the forward and backward pass use the bf16 weights
                for parameter in self._model.parameters():
                    parameter.copy_(parameter.bfloat16())
            loss = self._model.loss(next_batch(self._text, self._config.context + 1))
            self._optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter, master in zip(self._model.parameters(), masters):
                    parameter.copy_(master)
            self._optimizer.step()

    def weights(self) -> State:
        return {name: value.detach().bfloat16() for name, value in self._model.named_parameters()}


def stored_bytes(folder: Path) -> int:
    """Length of all files but the lease and the hint, which do not grow."""
    folders = ("segments", "tables", "roots", "pages")
    return sum(f.stat().st_size for name in folders for f in (folder / name).glob("*"))


class Saves:
    """Stores to which the same steps are saved in different ways."""

    WAYS = {"full": {"incremental": False}, "pages": {}, "deltas": {"deltas": 64}}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores = {way: cairn.open(folder / way, mode="a") for way in self.WAYS}

    def save(self, step: int, state: State) -> dict[str, dict[str, int]]:
        """Returns the payload and all bytes that each way has added."""
        written = {}
        for way, options in self.WAYS.items():
            before = stored_bytes(self._folder / way)
            report = self._stores[way].save(step, state, **options)
            after = stored_bytes(self._folder / way)
            written[way] = {"payload": report.written_bytes, "all": after - before}
        return written

    def check(self, step: int, state: State) -> None:
        for way, store in self._stores.items():
            loaded = store.read(step=step)
            for name, tensor in state.items():
                assert numpy.array_equal(payload(loaded[name]), payload(tensor)), (way, name)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def compress(before: State, after: State) -> dict[str, dict[str, float]]:
    """The bytes and seconds of other ways to store a step, tensor by tensor on one thread."""
    zstd = zstandard.ZstdCompressor(level=1)
    models = zipnn.ZipNN(method="AUTO", input_format="byte", threads=1)

    def xored(name: str) -> numpy.ndarray:
        old, new = payload(before[name]).view(numpy.uint64), payload(after[name]).view(numpy.uint64)
        return numpy.bitwise_xor(old, new)

    ways: dict[str, Callable[[str], Any]] = {
        "zstd-1": lambda name: zstd.compress(payload(after[name])),
        "ZipNN": lambda name: models.compress(payload(after[name]).tobytes()),
        "XOR, zstd-1": lambda name: zstd.compress(xored(name)),
    }
    names = [name for name in after if after[name].numel() % 4 == 0]
    result = {}
    for way, encode in ways.items():
        blobs, seconds = timed(lambda encode=encode: [encode(name) for name in names])
        result[way] = {"payload": sum(map(len, blobs)), "seconds": seconds}
    return result


def changed_share(before: State, after: State) -> float:
    def count(name: str) -> int:
        return int((before[name].view(torch.int16) != after[name].view(torch.int16)).sum())

    return sum(map(count, after)) / sum(tensor.numel() for tensor in after.values())


def measure_space(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    run = FineTune(options.width, options.layers)
    run.train(options.warm_up, 3e-4)
    rows = []
    for rate in options.rates:
        run.train(options.settle, rate)
        saves = Saves(folder / f"{rate:g}")
        before = run.weights()
        saves.save(0, before)
        for step in range(1, options.steps + 1):
            run.train(1, rate)
            state = run.weights()
            row = {"rate": rate, "changed": changed_share(before, state)}
            row |= {"bytes": sum(t.nbytes for t in state.values())}
            row |= {"cairn": saves.save(step, state), "others": compress(before, state)}
            saves.check(step, state)
            rows.append(row)
            before = state
            ratio = row["bytes"] / row["cairn"]["deltas"]["all"]
            print(f"rate {rate:g}: {row['changed']:.2%} changed, deltas 1/{ratio:.1f}", flush=True)
        saves.close()
        shutil.rmtree(folder / f"{rate:g}")
    return rows


class Masters:
    """A bf16 state of which a given share of the elements changes per step, by one rounding."""

    def __init__(self, mib: int) -> None:
        self._generator = numpy.random.default_rng(1)
        count = (mib << 20) // 2 // 64
        values = self._generator.standard_normal((64, count), numpy.float32) * 0.02
        weights = torch.from_numpy(values).bfloat16()
        self.state = {f"layer{i}.weight": weights[i].clone() for i in range(64)}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state.values())

    def step(self, share: float) -> None:
        for tensor in self.state.values():
            bits = tensor.view(torch.int16).numpy()
            # Elements that are drawn twice are few, and their change is that of one of the draws.
            chosen = self._generator.integers(0, bits.size, int(share * bits.size))
            bits[chosen] += self._generator.integers(0, 2, chosen.size, numpy.int16) * 2 - 1

    def new(self) -> State:
        return {name: torch.zeros_like(tensor) for name, tensor in self.state.items()}


def copies(state: State) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The limits, on all cores: a copy of the state into memory that exists; an update of such a
    copy, which reads both and writes one; and a sum of the bytes of the state."""
    targets = [torch.empty_like(tensor) for tensor in state.values()]
    yield "copy", lambda: [t.copy_(s) for t, s in zip(targets, state.values())]
    words = [(t.view(torch.int64), s.view(torch.int64)) for t, s in zip(targets, state.values())]
    yield "update", lambda: [target.bitwise_xor_(source) for target, source in words]
    yield "sum", lambda: [tensor.view(torch.int64).sum() for tensor in state.values()]


def measure_time(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for share in options.densities:
        times: dict[str, list[float]] = {}

        def add(name: str, work: Callable[[], Any], times: dict = times) -> Any:
            result, seconds = timed(work)
            times.setdefault(name, []).append(seconds)
            return result

        masters = Masters(options.mib)
        for repeat in range(options.repeat):
            path = folder / "time"
            limits = dict(copies(masters.state))
            with cairn.open(path, mode="a") as store:
                store.save_async(0, masters.state, deltas=True).result()
                live = store.read(step=0)
                pulled = 0
                for step in range(1, 5):
                    masters.step(share)
                    for name, work in limits.items():
                        add(name, work)
                    begin = time.perf_counter()
                    handle = store.save_async(step, masters.state, deltas=True)
                    times.setdefault("stall", []).append(time.perf_counter() - begin)
                    report = handle.result()
                    times.setdefault("save_async", []).append(time.perf_counter() - begin)
                    pulled = add("pull", lambda: store.pull(live, since=step - 1)).bytes_read
                add("save_async, unchanged", lambda: store.save_async(5, masters.state).result())
                add("save, full", lambda: store.save(6, masters.state, incremental=False))
                masters.step(share)
                add("save", lambda: store.save(7, masters.state, base_step=6, deltas=True))
                store.save(8, masters.state, incremental=False)
            with cairn.open(path) as store:
                targets = masters.new()
                for name, step in (("load", 8), ("load, 4 deltas", 4)) * 3:
                    page_cache.evict(path)
                    add(name, lambda step=step: store.load(targets, step=step))
            shutil.rmtree(path)
            print(f"{share:.1%}, round {repeat + 1} of {options.repeat}", flush=True)
        row = {"changed": share, "bytes": masters.nbytes, "delta_bytes": report.written_bytes}
        medians = {name: statistics.median(runs) for name, runs in times.items()}
        row |= {"pulled_bytes": pulled, "seconds": medians, "runs": times}
        rows.append(row)
    return rows


def adapters(generator: torch.Generator) -> tuple[State, State]:
    """A frozen bf16 model, and adapters with 0.5 % of the bytes."""
    frozen = {f"base.{i}": torch.randn(1024, 1600, generator=generator) for i in range(64)}
    frozen = {name: tensor.bfloat16() for name, tensor in frozen.items()}
    count = int(sum(tensor.nbytes for tensor in frozen.values()) * 0.005 / 0.995 / 64 / 4)
    return frozen, {f"lora.{i}": torch.randn(count, generator=generator) for i in range(64)}


def measure_regions(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Saves of which a small part of the bytes changes, and changes completely."""
    generator = torch.Generator().manual_seed(1)
    frozen, lora = adapters(generator)
    table = torch.randn(800_000, 256, generator=generator).bfloat16()  # rows of 512 bytes

    def train_lora() -> int:
        for tensor in lora.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 1e-3)
        return sum(tensor.nbytes for tensor in lora.values())

    def train_rows() -> int:
        rows = torch.randperm(len(table), generator=generator)[: len(table) // 100]
        table[rows] += torch.randn(len(rows), 256, generator=generator).bfloat16() * 0.1
        return len(rows) * 512

    cases = (
        ("LoRA adapters, 0.5% of the bytes", frozen | lora, train_lora),
        ("1% of the rows of an embedding", {"embedding": table}, train_rows),
    )
    results = []
    for case, state, train in cases:
        for way, deltas in (("pages", False), ("deltas", True)):
            path = folder / "regions"
            with cairn.open(path, mode="a") as store:
                store.save(0, state)
                full = stored_bytes(path)
                for step in (1, 2, 3):
                    before, changed = stored_bytes(path), train()
                    payload_bytes = store.save(step, state, deltas=deltas).written_bytes
                    row = {"case": case, "way": way, "full": full, "changed": changed}
                    row |= {"payload": payload_bytes, "all": stored_bytes(path) - before}
                    results.append(row)
                loaded = store.read(step=3)
                assert all(torch.equal(loaded[name], state[name]) for name in state), case
            shutil.rmtree(path)
    return results


def measure_codec(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Bytes per second of one core, and how many times fewer bytes: medians of --repeat runs."""
    command = [ROOT / "build/bin/cairn_delta_bench", "--benchmark_format=json"]
    command += [f"--benchmark_repetitions={options.repeat}"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=1800).stdout
    result = {}
    for run in json.loads(output)["benchmarks"]:
        if run.get("aggregate_name") != "median":
            continue
        if run.get("error_occurred"):
            raise RuntimeError(f"{run['run_name']}: {run['error_message']}")
        result[run["run_name"]] = {
            "rate": run["bytes_per_second"],
            "ratio": run.get("times_fewer_bytes"),
            "changed": run["changed%"] / 100,
        }
    weights = (torch.randn(32 << 20, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16()
    values = payload(weights).tobytes()
    codec = zipnn.ZipNN(method="AUTO", input_format="byte", threads=1)
    compressed = codec.compress(values)
    works = {
        "ZipNN, compress": lambda: codec.compress(values),
        "ZipNN, decompress": lambda: codec.decompress(compressed),
    }
    for name, work in works.items():
        seconds = statistics.median(timed(work)[1] for _ in range(options.repeat))
        result[name] = {"rate": len(values) / seconds, "ratio": len(values) / len(compressed)}
    return result


def measure_programs(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a program from its start to its end, with the files in the page cache."""
    memory = torch.zeros(20_000, 32) + torch.arange(20_000)[:, None]
    state = {f"layers.{i // 100}.{i % 100}.weight": row for i, row in enumerate(memory.unbind())}
    store = folder / "programs"
    with cairn.open(store, mode="a") as writer:
        for step in range(1, 101):
            memory[step * 199 : step * 199 + 400] += 1
            writer.save(step, state)
    works = {
        "history": ("history", store, "layers.70.50.weight"),
        "space": ("space", store, "--depth", 2),
        "diff of the first and the last step": ("diff", f"{store}@1", f"{store}@100"),
    }
    result = {}
    for name, words in works.items():
        command = [str(ROOT / "build/bin/kv-dump"), *map(str, words)]
        runs = [
            timed(lambda command=command: subprocess.run(command, stdout=subprocess.DEVNULL))[1]
            for _ in range(21)
        ]
        result[name] = statistics.median(runs[1:])
    shutil.rmtree(store)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dir", type=Path, required=True, help="working directory on the disk to measure")
    add("--out", type=Path, help="directory for history.md, history.json and history.png")
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--add-to", type=Path, help="a history.json whose other parts are kept")
    add("--width", type=int, default=768, help="width of the GPT (768)")
    add("--layers", type=int, default=8, help="layers of the GPT (8)")
    add("--warm-up", type=int, default=30, help="steps before the fine-tune (30)")
    add("--settle", type=int, default=4, help="steps with each learning rate before it counts (4)")
    add("--steps", type=int, default=3, help="saved steps per learning rate (3)")
    add("--rates", type=float, nargs="*", default=RATES, help="learning rates")
    add("--mib", type=int, default=1024, help="size of the state of the part time (1024)")
    add("--densities", type=float, nargs="*", default=DENSITIES, help="changed shares of elements")
    add("--repeat", type=int, default=3, help="rounds of the parts time and codec (3)")
    options = parser.parse_args()
    for folder in filter(None, (options.dir, options.out)):
        folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="history-", dir=options.dir))
    result = json.loads(options.add_to.read_text()) if options.add_to else {}
    measures: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
        "space": measure_space,
        "regions": measure_regions,
        "time": measure_time,
        "codec": measure_codec,
        "programs": measure_programs,
    }
    try:
        result |= {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": machine.machine(folder),
            "versions": machine.versions() | {"zipnn": metadata.version("zipnn")},
        }
        measured = result.setdefault("measured", {})
        for part in options.parts:
            result[part] = measures[part](folder, options)
            measured[part] = f"{result['date']}, {result['versions']['cairn']}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.out is not None:
        (options.out / "history.json").write_text(json.dumps(result, indent=1) + "\n")
        if measures.keys() <= result.keys():
            write_report(result, options.out)


if __name__ == "__main__":
    main()
