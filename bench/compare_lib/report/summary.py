"""The first page: machine, versions, the bars, and how to read the rest."""

from __future__ import annotations

from compare_lib.report.bars import Bar, bars
from compare_lib.report.tables import size, table
from compare_lib.results import Results

READING = """\
## How it was measured

- Every measurement runs in a process of its own, forked from one that holds the state, so that
  all peers save the same memory. For each work and run every peer has one turn, in an order
  that rotates.
- *median*, *min* and *max* are over the runs; *of the limit* is the limit's median time divided
  by the peer's, of the fastest limit where there are several; *time, Cairn = 1* is the peer's
  time divided by Cairn's: above 1 it is slower than Cairn, below 1 faster.
- *CPU* is of all threads and of child processes; a GB is 10⁹ bytes of what was asked for.
  *Peak* is resident memory beyond what there was at the start, mapped pages of files included,
  for loads into new tensors less the tensors. *Read* and *written* are bytes from and to
  storage, as the kernel counts them.
- A save counts until everything is synced: peers that leave a sync out have it added, and it is
  said.
- A load counts until one byte of every page of the result was read: a lazy mapping is no load.
  Results of the first run of every peer and work were compared with the state, bit for bit.
- *Cold*: the files were synced and evicted with `posix_fadvise`, and the kernel asked whether
  anything stayed. *Warm*: the files were read once through the page cache before.
- A stall ends when the caller may change its tensors; figures are of the second and later saves
  of a process, when staging memory is there.
- Memory that nobody used lately can cost a virtual machine several times what copying into it
  does, whoever takes it. So before every full save and load as much as it may need is touched
  and freed again; what is taken is still new to the process, and zeroed by the kernel.
- Limits are in italics: fio reads and writes past the page cache, memcpy copies in memory.
"""


def _verdict(bar: Bar) -> str:
    return "–" if bar.is_met is None else ("met" if bar.is_met else "**not met**")


def _bars_table(results: Results) -> str:
    rows = [[bar.state, bar.work, bar.asked, bar.measured, _verdict(bar)] for bar in bars(results)]
    return table(("state", "work", "asked", "measured", ""), rows)


def summary_page(results: Results) -> str:
    data = results.data
    counts = [run["run"] for run in results.runs]
    parts = [
        "# Cairn beside its peers and the machine's limits",
        f"Measured on {data['date']} by `{' '.join(data['command'])}`: {len(results.runs)} "
        f"figures, up to {max(counts, default=0)} runs of each measurement. Every run is in "
        "[raw.json](raw.json). The figures of `kv-bench` alone are in [kv-bench.md](kv-bench.md).",
        table(
            ("state", "bytes", "tensors"),
            [
                [f"[{of['title']}]({name}.md)", size(of["bytes"]) if of["tensors"] else "–",
                 f"{of['tensors']:,}" if of["tensors"] else "–"]
                for name, of in data["states"].items()
            ],
        ),
        "## Machine",
        table(("", ""), [[name, value] for name, value in data["machine"].items()]),
        "## Versions",
        table(("", ""), [[name, value] for name, value in data["versions"].items()]),
        "## What Cairn is held to",
        _bars_table(results),
        READING.strip(),
        "## Settings",
        "\n".join(
            f"- {name}: {about['missing'] or '; '.join(about['remarks'])}"
            for name, about in data["peers"].items()
        ),
    ]  # fmt: skip
    failed = [run for run in results.runs if "error" in run]
    if failed:
        lines = {f"- {r['state']}, {r['work']}, {r['peer']}: {r['error']}": None for r in failed}
        parts += ["## What failed", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
