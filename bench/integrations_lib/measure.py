"""Measures one library: all workloads and contenders, several times, in an order that rotates."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import statistics
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from compare_lib import page_cache

from integrations_lib.jobs import Result, run_job
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Case, Run

LIBRARIES = {
    "transformers": "hf_trainer:LIBRARY",
    "accelerate": "accelerate_states:LIBRARY",
    "lightning": "lightning_trainer:LIBRARY",
    "torchtitan": "torchtitan_manager:LIBRARY",
    "deepspeed-2": "deepspeed_zero:STAGE_2",
    "deepspeed-3": "deepspeed_zero:STAGE_3",
    "megatron": "megatron_strategies:LIBRARY",
    "ray": "ray_workers:LIBRARY",
    "pretrained": "pretrained_models:TRANSFORMERS",
    "diffusers": "pretrained_models:DIFFUSERS",
}
TINY = 1e5
WORKLOADS = {"full": False, "frozen": True}


@dataclass(frozen=True)
class Options:
    """How a library is measured."""

    folder: Path
    parameters: float
    repeat: int


class Failed(Exception):
    """A run has failed; the text contains its output."""


def load_library(name: str) -> Library:
    """Imports the library; takes seconds."""
    module, _, attribute = LIBRARIES[name].partition(":")
    return getattr(importlib.import_module(f"integrations_lib.{module}"), attribute)


def bytes_below(folder: Path) -> int:
    """The space that files occupy."""
    blocks = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        blocks[status.st_ino] = status.st_blocks * 512
    return sum(blocks.values())


def _resume(library: Library, runs: list[Run], scratch: Path) -> tuple[float, list[str]]:
    results, error = run_job(library.resume, runs, scratch)
    if error:
        raise Failed(f"resume: {error}")
    return max(one["resume"] for one in results), [one["digest"] for one in results]


def _import_what_it_imports(library: Library, case: Case, scratch: Path) -> None:
    """Trains and resumes a tiny model once, and imports here what the library imports then, so that
    the measured processes have it when they are forked."""
    for work in (library.train, library.resume):
        folder = scratch / "saves"
        folder.mkdir(parents=True, exist_ok=True)
        runs = [Run(case, folder, rank, library.ranks) for rank in range(library.ranks)]
        results, error = run_job(work, runs, scratch)
        if error:
            raise Failed(error)
        for name in (name for one in results for name in one["imported"]):
            with contextlib.suppress(Exception):  # some can only be imported by others
                importlib.import_module(name)
    shutil.rmtree(scratch)


def _over_ranks(results: list[Result], name: str) -> list[float]:
    """A figure of each save. The training continues when the slowest rank does."""
    return [max(one["saves"][i][name] for one in results) for i in range(SAVES)]


def measure_once(library: Library, case: Case, scratch: Path) -> dict[str, Any]:
    """The figures of one training and its resumes. Raises Failed."""
    shutil.rmtree(scratch, ignore_errors=True)
    folder = scratch / "saves"
    folder.mkdir(parents=True)
    runs = [Run(case, folder, rank, library.ranks) for rank in range(library.ranks)]
    results, error = run_job(library.train, runs, scratch)
    if error:
        raise Failed(error)
    trained = [one["digest"] for one in results]
    stalls = _over_ranks(results, "stall")
    figures: dict[str, Any] = {
        "stall": statistics.median(stalls),
        "longest_stall": max(stalls),
        "saved": sum(_over_ranks(results, "saved")),
        "durable": sum(_over_ranks(results, "durable")),
        "bytes": bytes_below(folder),
    }
    kept, kept_digests = _resume(library, runs, scratch)
    page_cache.evict(folder)
    cold, cold_digests = _resume(library, runs, scratch)
    if not trained == kept_digests == cold_digests:
        raise Failed("the resumed state is not the saved one")
    shutil.rmtree(scratch)
    return figures | {"resume": cold, "resume_cached": kept}


def measure_library(name: str, options: Options) -> dict[str, Any]:
    """What the JSON has for a library: its versions, and the figures of each workload, contender
    and repetition."""
    library = load_library(name)
    workloads: dict[str, Any] = {}
    for contender in library.contenders:
        tiny = Case(name, contender, TINY, False)
        _import_what_it_imports(library, tiny, options.folder / name)
    for workload, is_frozen in WORKLOADS.items():
        runs: dict[str, list[dict[str, Any]]] = {one: [] for one in library.contenders}
        for repetition in range(options.repeat):
            turn = repetition % len(runs)
            for contender in (library.contenders * 2)[turn : turn + len(runs)]:
                case = Case(name, contender, options.parameters, is_frozen)
                figures = measure_once(library, case, options.folder / name)
                runs[contender].append(figures)
                text = f"stall {figures['stall'] * 1e3:.0f} ms, saves {figures['durable']:.2f} s, "
                text += f"resume {figures['resume'] * 1e3:.0f} ms, {figures['bytes'] / 1e6:.0f} MB"
                what = f"{name}, {workload}, {contender}, {repetition + 1} of {options.repeat}"
                print(f"{what}: {text}", file=sys.stderr, flush=True)
        workloads[workload] = runs
    versions = {package: metadata.version(package) for package in library.packages}
    return {
        "title": library.title,
        "text": library.text,
        "rivals": library.rivals,
        "ranks": library.ranks,
        "versions": versions,
        "parameters": options.parameters,
        "repeat": options.repeat,
        "workloads": workloads,
    }
