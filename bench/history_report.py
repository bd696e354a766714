"""Writes the page and the chart of bench/history.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compare_lib import machine

MIB = 1 << 20
CAIRN = {"pages": "changed pages", "deltas": "deltas"}
OTHERS = ("zstd-1", "ZipNN", "XOR, zstd-1")
TEXT = """# The space of a history of steps

Measured by `bench/history.py` ({measured}). Every figure is in [history.json](history.json).

Machine: {machine}.

Versions: {versions}.

![chart](history.png)

## Bytes per save

The GPT of the demo, larger, is fine-tuned on text: bf16 weights, fp32 masters, AdamW. Each step of
the weights is saved in three ways: completely, only the changed pages, and as deltas (`deltas=64`).
Every step was loaded again and compared bit for bit. The figures are how many times fewer bytes
than a full save were written; *all files* includes tables, roots, page digests and padding. The
last columns compress the same tensors, one by one.

{space}

Between the steps that were measured:

{bars}

## Small parts that change completely

Saves of a frozen bf16 model with LoRA adapters, of which only the adapters change, and of an
embedding of bf16 rows of 512 bytes, of which 1% of the rows change. *all files* as above; the
largest of three saves.

{regions}

## Time

In a synthetic bf16 state of 64 tensors, the given share of the elements changes per step by one
unit in the last place. *stall* is the time until `save_async` returns; *save_async* ends when the
step is durable. *copy*, *update* and *sum* of the state use all cores; *update* reads the state
and an earlier copy, and writes the copy, as a stall with deltas has to do at least. Loads are
cold, into existing tensors; *load* reads a full save, *load, 4 deltas* a full save and four
deltas. *save* has no base in memory and reads it from the store. Medians.

{time}

## Encoding and decoding

`build/bin/cairn_delta_bench`: a step of 64 MiB of bf16 weights in memory, on one core, next to the
XOR of both versions that zstd compresses at level 1 as a whole, and to zstd and ZipNN of the new
version alone. The rates are bytes of the weights per second.

{codec}

At {reading:.1f} GB/s, a loop that only compares both versions is the limit for an encoder;
the page digests, which a save computes in any case, run at {digests:.1f} GB/s. zstd-1 of the new
version: {zstd}. ZipNN: {zipnn}.

## Programs

`kv-dump` on a store of 100 steps of 20,000 tensors, of which 400 changed in each step, from the
start of the program to its end, with the files in the page cache; medians of 20 runs. The target is
50 ms each.

{programs}
"""
BARS = {0.015: 105, 0.04: 45, 0.1: 20}  # how many times fewer bytes, by share of changed elements


def _at(share: float, rows: list[dict[str, Any]], way: str, kind: str) -> float | None:
    """The ratio to full saves at a share of changed elements, interpolated in logarithms between
    the two nearest steps; None outside of what was measured."""
    import math

    points = sorted((row["changed"], row["bytes"] / row["cairn"][way][kind]) for row in rows)
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= share <= x1:
            weight = math.log(share / x0) / math.log(x1 / x0) if x1 > x0 else 0
            return math.exp(math.log(y0) + weight * math.log(y1 / y0))
    return None


def _space_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| learning rate | elements changed | full save, MiB | changed pages | deltas "
        "| deltas, all files |"
        + "".join(f" {way} |" for way in OTHERS),
        "| ---: " * (6 + len(OTHERS)) + "|",
    ]
    for row in rows:
        cells = [f"{row['rate']:g}", f"{row['changed']:.2%}", f"{row['bytes'] / MIB:.1f}"]
        cells += [f"{row['bytes'] / row['cairn'][way]['payload']:.1f}×" for way in CAIRN]
        cells += [f"{row['bytes'] / row['cairn']['deltas']['all']:.1f}×"]
        cells += [f"{row['bytes'] / row['others'][way]['payload']:.1f}×" for way in OTHERS]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _bar_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| elements changed | target | payload | all files |", "| ---: | ---: | ---: | ---: |"]
    for share, bar in BARS.items():
        cells = [f"{share:.1%}", f"≥ {bar}×"]
        for kind in ("payload", "all"):
            ratio = _at(share, rows, "deltas", kind)
            cells.append("not reached by these rates" if ratio is None else f"{ratio:.1f}×")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _region_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| what changes | way | changed, MiB | payload / changed | all files / changed "
        "| all files / full save |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["case"], row["way"])
        if key not in worst or row["all"] > worst[key]["all"]:
            worst[key] = row
    for (case, way), row in worst.items():
        cells = [case, CAIRN[way], f"{row['changed'] / MIB:.2f}"]
        cells += [f"{row[kind] / row['changed']:.2f}" for kind in ("payload", "all")]
        cells += [f"{row['all'] / row['full']:.3%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _time_lines(rows: list[dict[str, Any]]) -> list[str]:
    names = list(rows[0]["seconds"])
    lines = [
        "|  | " + " | ".join(f"{row['changed']:.1%} changed" for row in rows) + " |",
        "| --- | " + "---: | " * len(rows),
    ]
    for name in names:
        cells = [f"{1e3 * row['seconds'][name]:.0f} ms" for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    cells = [f"{row['delta_bytes'] / MIB:.1f} MiB" for row in rows]
    lines.append("| written by save_async | " + " | ".join(cells) + " |")
    cells = [f"{row['pulled_bytes'] / MIB:.1f} MiB" for row in rows]
    lines.append("| read by pull | " + " | ".join(cells) + " |")
    pairs = [("load, 4 deltas", "load"), ("stall", "copy"), ("stall", "update"), ("stall", "sum")]
    for above, below in pairs:
        cells = [f"{row['seconds'][above] / row['seconds'][below]:.2f}" for row in rows]
        lines.append(f"| {above} / {below} | " + " | ".join(cells) + " |")
    return lines


def _codec_lines(runs: dict[str, Any]) -> list[str]:
    lines = [
        "| elements changed | encode | decode | XOR, zstd-1: encode | decode | ratio, encode "
        "| ratio, decode | bytes, XOR / deltas |",
        "| ---: " * 8 + "|",
    ]
    for per_mille in (15, 40, 100):
        names = ("DeltaEncode", "DeltaDecode", "DeltaPeerXorZstd", "DeltaPeerXorUnZstd")
        run = [runs[f"{name}/{per_mille}"] for name in names]
        cells = [f"{run[0]['changed']:.1%}"]
        cells += [f"{each['rate'] / 1e9:.2f} GB/s" for each in run]
        cells += [f"{run[i]['rate'] / run[i + 2]['rate']:.1f}" for i in (0, 1)]
        cells += [f"{run[0]['ratio'] / run[2]['ratio']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _codec_limits(runs: dict[str, Any]) -> dict[str, Any]:
    rates = {name: run["rate"] / 1e9 for name, run in runs.items()}
    zstd, zipnn = runs["DeltaPeerZstd/15"], runs["ZipNN, compress"]
    return {
        "reading": rates["DeltaReadBoth/15"],
        "digests": rates["DeltaPageDigests/15"],
        "zstd": f"{rates['DeltaPeerZstd/15']:.2f} GB/s, {zstd['ratio']:.2f} times fewer bytes",
        "zipnn": f"{rates['ZipNN, compress']:.2f} GB/s ({rates['ZipNN, decompress']:.2f} to "
        f"decompress), {zipnn['ratio']:.2f} times fewer bytes",
    }


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    rows = sorted(rows, key=lambda row: row["changed"])
    shares = [100 * row["changed"] for row in rows]
    series = {"full save": [row["bytes"] for row in rows]}
    for way, title in CAIRN.items():
        series[title] = [row["cairn"][way]["all"] for row in rows]
    for way in OTHERS:
        series[way] = [row["others"][way]["payload"] for row in rows]
    for title, values in series.items():
        style = {"linewidth": 1.2, "marker": "o"}
        if title == "deltas":
            style |= {"linewidth": 2.4, "color": "#c2410c"}
        elif title == "full save":  # hidden by the changed pages otherwise
            style = {"linewidth": 7, "color": "#cbd5e1"}
        axes.plot(shares, [value / MIB for value in values], label=title, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("elements that changed, %")
    axes.set_ylabel("MiB per save")
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write_report(result: dict[str, Any], folder: Path) -> None:
    """Writes history.md and history.png to `folder`."""
    _draw(result["space"], folder / "history.png")
    text = TEXT.format(
        **machine.heading(result),
        space="\n".join(_space_lines(result["space"])),
        bars="\n".join(_bar_lines(result["space"])),
        regions="\n".join(_region_lines(result["regions"])),
        time="\n".join(_time_lines(result["time"])),
        codec="\n".join(_codec_lines(result["codec"])),
        **_codec_limits(result["codec"]),
        programs="\n".join(
            ["| program | time |", "| --- | ---: |"]
            + [f"| {name} | {1e3 * s:.0f} ms |" for name, s in result["programs"].items()]
        ),
    )
    (folder / "history.md").write_text(text)
