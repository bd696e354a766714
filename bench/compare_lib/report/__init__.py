"""Tables, charts and the summary, all generated from the raw results."""

from __future__ import annotations

import sys
from pathlib import Path

from compare_lib.report.charts import draw
from compare_lib.report.summary import summary_page
from compare_lib.report.tables import state_page
from compare_lib.results import Results


def write(results: Results, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in results.data["states"]:
        (out / f"{name}.md").write_text(state_page(results, name))
        try:
            draw(results, name, out / f"{name}.png")
        except ImportError as error:
            print(f"no chart: {error} (pip install -r bench/requirements.txt)", file=sys.stderr)
    page = summary_page(results, has_kv_bench=(out / "kv-bench.md").exists())
    (out / "README.md").write_text(page)
