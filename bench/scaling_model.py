"""Derives from the measured curves what a job of 100,000 ranks needs."""

from __future__ import annotations

from typing import Any

RANKS = 100_000
CHUNKS = 100_000_000
CHUNK_BYTES = 4 << 20
STORAGE_RATE = 10e12  # bytes per second
MERGING = 64
MEASURED_MERGING = 8
CHUNKS_PER_RANK = 128  # in the measured jobs
REQUESTS_PER_S = 5_000  # of one client; AWS documents 5,500 reads per second and prefix
GIB = 1 << 30
BOTTLENECK = f"""
**The first bottleneck** after the payload is the number of requests: rank 0 reads the index of
each part, and a merging rank a range of each part, so that each of them sends {RANKS:,} requests.
More merging ranks do not change this. Larger parts would, for which the ranks of a node would have
to share one part. Without merging ranks, the bottleneck is rank 0: {{alone_s:.0f}} s, in which all
others wait.

**Not verified**: more than 65,536 simulated ranks or 8 merging ranks, ranks that run at the same
time on other machines, a storage that so many clients share and its listing of {RANKS:,} parts,
the network, and the collectives of the job."""

Row = tuple[str, str, str]


def _costs(points: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """What one unit costs at the largest sizes."""

    def last(axis: str, name: str, figure: str = "cpu") -> float:
        return points[axis][-1]["figures"][name][figure]

    gib, ranks, tensors = (points[axis][-1]["size"] for axis in ("bytes", "ranks", "tensors"))
    chunks = ranks * CHUNKS_PER_RANK
    return {
        "save_gib": last("bytes", "save") / gib,
        "load_gib": last("bytes", "load, cold") / gib,
        "merge_chunk": last("ranks", "commit, a merging rank") / (chunks / MEASURED_MERGING),
        "alone_chunk": last("ranks", "commit, rank 0 merges") / chunks,
        "divide_rank": last("ranks", "commit, rank 0 of merging ranks") / ranks,
        "record_bytes": last("tensors", "save", "metadata") / tensors,
        "read_tensor": last("tensors", "read all, new tensors") / tensors,
        "open": last("tensors", "open"),
    }


def _save_rows(cost: dict[str, float], payload: int, rank_gib: float) -> list[Row]:
    own = CHUNKS // MERGING
    return [
        (
            "payload of all ranks at the rate of the storage",
            f"{payload / STORAGE_RATE:.0f} s",
            f"{payload / 1e12:.0f} TB",
        ),
        (
            "processor time of a rank for its payload",
            f"{cost['save_gib'] * rank_gib:.1f} s",
            f"{cost['save_gib']:.2f} s per GiB, {rank_gib:.1f} GiB",
        ),
        (
            f"requests of rank 0, and of each of {MERGING} merging ranks, to read the parts",
            f"{RANKS / REQUESTS_PER_S:.0f} s",
            f"{RANKS:,} requests, {REQUESTS_PER_S:,} per second and client",
        ),
        (
            "processor time of a merging rank",
            f"{cost['merge_chunk'] * own:.1f} s",
            f"{1e6 * cost['merge_chunk']:.2f} µs per chunk, {own:,} chunks",
        ),
        (
            "processor time of rank 0 with merging ranks",
            f"{cost['divide_rank'] * RANKS:.1f} s",
            f"{1e6 * cost['divide_rank']:.0f} µs per rank",
        ),
        (
            "processor time of rank 0 that merges alone",
            f"{cost['alone_chunk'] * CHUNKS:.0f} s",
            f"{1e6 * cost['alone_chunk']:.2f} µs per chunk",
        ),
        (
            "tables",
            f"{cost['record_bytes'] * CHUNKS / 1e9:.1f} GB",
            f"{cost['record_bytes']:.0f} bytes per chunk",
        ),
    ]


def _load_rows(cost: dict[str, float], payload: int, rank_gib: float) -> list[Row]:
    per_rank = CHUNKS // RANKS
    return [
        (
            "payload of all ranks at the rate of the storage",
            f"{payload / STORAGE_RATE:.0f} s",
            "each byte is read by one rank",
        ),
        (
            "processor time of a rank for its payload",
            f"{cost['load_gib'] * rank_gib:.1f} s",
            f"{cost['load_gib']:.2f} s per GiB",
        ),
        ("opening the store", f"{1e3 * cost['open']:.1f} ms", "does not depend on the sizes"),
        (
            "records of the tensors of a rank",
            f"{1e3 * cost['read_tensor'] * per_rank:.0f} ms",
            f"{1e6 * cost['read_tensor']:.1f} µs per tensor, {per_rank:,} tensors",
        ),
    ]


def model_lines(result: dict[str, Any]) -> list[str]:
    """Requires points of all axes."""
    cost = _costs(result["points"])
    payload = CHUNKS * CHUNK_BYTES
    rank_gib = payload / RANKS / GIB
    lines = [
        f"## A job of {RANKS:,} ranks",
        "",
        f"A model, not a measurement: what a save and a load of {CHUNKS:,} chunks of",
        f"{CHUNK_BYTES >> 20} MiB need with a storage of {STORAGE_RATE / 1e12:.0f} TB/s, if the",
        "curves above continue. Costs of one unit are those of the largest sizes.",
    ]
    for title, rows in (
        ("save", _save_rows(cost, payload, rank_gib)),
        ("load", _load_rows(cost, payload, rank_gib)),
    ):
        lines += ["", f"| {title} | needs | from |", "| --- | ---: | --- |"]
        lines += [f"| {what} | {needs} | {source} |" for what, needs, source in rows]
    return lines + BOTTLENECK.format(alone_s=cost["alone_chunk"] * CHUNKS).splitlines()
