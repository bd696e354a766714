"""Generates the page of one state: a table per workload."""

from __future__ import annotations

from typing import Any

from compare_lib.results import Figure, Results

COLUMNS = (
    "", "median", "min–max", "of the limit", "time, Cairn = 1", "CPU s", "CPU s/GB",
    "peak MiB", "read MiB", "written MiB",
)  # fmt: skip
MIB = 1 << 20


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / MIB:.3g} MiB"


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class _Notes:
    """Footnotes: each text occurs once, numbered in the order of first use."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self._texts:
            self._texts.append(text)
        return f"<sup>{self._texts.index(text) + 1}</sup>"

    def lines(self) -> list[str]:
        return [f"{i}. {text}" for i, text in enumerate(self._texts, 1)]


def _cells(figure: Figure, limit: Figure | None, cairn: Figure | None, nbytes: int) -> list[str]:
    cpu_per_gb = f"{figure.cpu_seconds / nbytes * 1e9:.2f}" if nbytes else "–"
    return [
        seconds(figure.median),
        f"{seconds(figure.low)} – {seconds(figure.high)}",
        ratio(limit.median / figure.median) if limit else "",
        ratio(figure.median / cairn.median) if cairn else "",
        f"{figure.cpu_seconds:.3f}",
        cpu_per_gb,
        f"{figure.peak_bytes / MIB:.0f}",
        f"{figure.read_bytes / MIB:.1f}",
        f"{figure.write_bytes / MIB:.1f}",
    ]


def _why_not(about: dict[str, Any], work: str, method: str) -> str:
    reason = about["missing"] or about["cannot_partly"].get(work) or about["cannot"].get(method)
    return reason or "was not measured in this run"


def _work_table(results: Results, state: str, work: str, nbytes: int) -> str:
    described = results.data["works"][work]
    limit, cairn = results.limit(state, work), results.figure(state, work, "cairn")
    notes = _Notes()
    rows = []
    for peer, about in results.data["peers"].items():
        limits = (*described["limits"], *described.get("other_limits", ()))
        if about["is_limit"] and peer not in limits:
            continue
        if state not in (about.get("only_states") or (state,)):
            continue
        figure = results.figure(state, work, peer)
        errors = results.errors(state, work, peer)
        marks = notes.mark(f"failed: {errors[0]} ({len(errors)} times)") if errors else ""
        for run in results.of(state, work, peer):
            if run.get("first") and run["run"] == 1 and "error" not in run:
                marks += notes.mark(f"{peer}: the first of its process, {seconds(run['seconds'])}")
            if "note" in run:
                marks += notes.mark(run["note"])
        name = f"*{peer}*" if about["is_limit"] else peer
        if figure is not None:
            rows.append([name + marks, *_cells(figure, limit, cairn, nbytes)])
        elif errors:
            rows.append([name, f"failed{marks}", *[""] * (len(COLUMNS) - 2)])
        else:
            mark = notes.mark(_why_not(about, work, described["method"]))
            rows.append([name, f"–{mark}", *[""] * (len(COLUMNS) - 2)])
    return "\n\n".join([table(COLUMNS, rows), *notes.lines()])


def state_page(results: Results, state: str) -> str:
    described = results.data["states"][state]
    tensors = described["tensors"]
    what = f" in {tensors:,} tensors" if tensors > 1 else ""
    held = f": {size(described['bytes'])}{what}" if tensors else ""
    parts = [
        f"# {described['title']}{held}",
        f"Measured on {results.data['date']} by `bench/compare.py`; [README.md](README.md) "
        "describes the machine, the versions and the method.",
        f"![chart]({state}.png)",
    ]
    for work, of_work in described["works"].items():
        title = results.data["works"][work]["title"]
        parts.append(f"## {title[0].upper()}{title[1:]}")
        if of_work["impossible"]:
            parts.append(f"Not applicable: {of_work['impossible']}.")
            continue
        if of_work["bytes"]:
            parts.append(f"{size(of_work['bytes'])}.")
        parts.append(_work_table(results, state, work, of_work["bytes"]))
    return "\n\n".join(parts) + "\n"
