"""Draws the chart of one state: a panel per workload, a bar per peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compare_lib.report.tables import seconds
from compare_lib.results import Figure, Results

COLORS = {
    "cairn": "#c2410c",
    "cairn mmap": "#f59e0b",
    "dcp": "#1d4ed8",
    "torch": "#0f766e",
    "torch mmap": "#5eead4",
    "safetensors": "#7e22ce",
    "tensorstore": "#be185d",
    "torch_checkpointing": "#60a5fa",
}
LIMIT_COLOR = "#9ca3af"
WIDTH_INCHES = 13
BAR_INCHES = 0.27
COLUMNS = 2


def _panels(results: Results, state: str) -> list[tuple[str, dict[str, Figure]]]:
    panels = []
    for work in results.data["states"][state]["works"]:
        found = {peer: results.figure(state, work, peer) for peer in results.data["peers"]}
        figures = {peer: figure for peer, figure in found.items() if figure is not None}
        if figures:
            panels.append((results.data["works"][work]["title"], figures))
    return panels


def _draw_panel(axes: Any, title: str, figures: dict[str, Figure]) -> None:
    places = range(len(figures), 0, -1)
    medians = [figure.median for figure in figures.values()]
    spread = [
        [figure.median - figure.low for figure in figures.values()],
        [figure.high - figure.median for figure in figures.values()],
    ]
    colors = [COLORS.get(peer, LIMIT_COLOR) for peer in figures]
    whiskers = {"ecolor": "#111827", "elinewidth": 1, "capsize": 2}
    axes.barh(places, medians, xerr=spread, color=colors, height=0.75, error_kw=whiskers)
    for place, figure in zip(places, figures.values()):
        axes.annotate(
            seconds(figure.median), (figure.high, place), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(list(places), list(figures), fontsize=8)
    axes.set_xlim(0, max(figure.high for figure in figures.values()) * 1.18)
    axes.set_ylim(0.4, len(figures) + 0.6)
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("seconds, shorter is better", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw(results: Results, state: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = _panels(results, state)
    if not panels:
        return
    columns = min(COLUMNS, len(panels))
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [max(len(figures) for _, figures in row) * BAR_INCHES + 0.9 for row in rows]
    figure, grid = pyplot.subplots(
        len(rows), columns, squeeze=False, layout="constrained",
        figsize=(WIDTH_INCHES, sum(heights) + 0.6), height_ratios=heights,
    )  # fmt: skip
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, figures) in zip(grid.flat, panels):
        _draw_panel(axes, title, figures)
    described = results.data["states"][state]
    what = f"{described['title']}, median and min–max, {results.data['date']}"
    figure.suptitle(what, fontsize=12)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
