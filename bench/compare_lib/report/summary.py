"""Generates the first page: machine, versions, targets, and how to read the other pages."""

from __future__ import annotations

from compare_lib.report.bars import Bar, bars
from compare_lib.report.tables import size, table
from compare_lib.results import Results

KV_BENCH = " The figures of `kv-bench` alone are in [kv-bench.md](kv-bench.md)."
READING = """\
## How it was measured

- Every measurement runs in a separate process, forked from one that holds the state, so that all
  peers save the same memory. For each workload and run, every peer is measured once, in an order
  that rotates.
- *median*, *min* and *max* are over the runs. *of the limit* is the limit's median time divided by
  the peer's (if there are several limits, that of the fastest). *time, Cairn = 1* is the peer's
  time divided by Cairn's: above 1 it is slower than Cairn, below 1 faster.
- *CPU* includes all threads and child processes; a GB is 10⁹ bytes of the requested data. *Peak* is
  the resident memory in addition to that at the start, including mapped pages of files; for loads
  into new tensors, the tensors are subtracted. *Read* and *written* are bytes from and to storage,
  as counted by the kernel.
- The time of a save ends when everything is synced. If a peer does not sync, the sync is added and
  mentioned in *Settings*.
- The time of a load ends when one byte of every page of the result has been read: a lazy mapping is
  not a load. The results of the first run of every peer and workload were compared with the state,
  bit for bit.
- *Cold*: the files were synced and evicted with `posix_fadvise`, and the kernel was asked whether
  any bytes remained in the page cache. *Warm*: the files were read once through the page cache.
- A stall ends when the caller may change its tensors. The figures are those of the second and later
  saves of a process, which reuse the staging memory.
- On a virtual machine, the first access to memory that was not used recently may take several times
  as long as copying into it, regardless of the program. Therefore, as much memory as necessary is
  touched and freed before every full save and load. The memory that a peer allocates is still new
  to its process and is zeroed by the kernel.
- Limits are in italics: fio reads and writes without the page cache, memcpy copies in memory.
"""


def _verdict(bar: Bar) -> str:
    return "–" if bar.is_met is None else ("met" if bar.is_met else "**not met**")


def _bars_table(results: Results) -> str:
    rows = [[bar.state, bar.work, bar.asked, bar.measured, _verdict(bar)] for bar in bars(results)]
    return table(("state", "workload", "target", "measured", ""), rows)


def summary_page(results: Results, has_kv_bench: bool) -> str:
    data = results.data
    counts = [run["run"] for run in results.runs]
    parts = [
        "# Cairn compared with its peers and the machine's limits",
        f"Measured on {data['date']} by `{' '.join(data['command'])}`: {len(results.runs)} "
        f"figures, up to {max(counts, default=0)} runs of each measurement. Every run is in "
        "[raw.json](raw.json)." + (KV_BENCH if has_kv_bench else ""),
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
        "## Targets",
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
        parts += ["## Failures", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
