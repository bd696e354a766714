"""`Prometheus`: a file in the text format of Prometheus.

The textfile collector of node_exporter reads such files.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cairn.errors import Invalid
from cairn.metrics._measures import measures

if TYPE_CHECKING:
    from cairn.reports import StoreEvent

_COUNTERS = {
    "calls": "Calls that have ended.",
    "failures": "Calls that have failed.",
    "seconds": "Time until the results of the calls were complete.",
    "stall_seconds": "Time for which the calls kept their callers waiting.",
    "logical_bytes": "Bytes of the tensors of saved steps.",
    "written_bytes": "Bytes of payload that were written.",
    "bytes_read": "Bytes that were read from storage.",
    "freed_bytes": "Bytes of files that no step uses any more.",
    "chunks": "Chunks of saved steps.",
    "chunks_reused": "Chunks of saved steps that were not written, because the store had them.",
}
_GAUGES = {
    "last_saved_step": "Number of the step that was saved last.",
    "last_save_timestamp_seconds": "When the last save succeeded, in seconds since 1970.",
    "last_save_seconds": "Time until the step that was saved last was durable.",
    "last_save_stall_seconds": "Time for which the last save kept its caller waiting.",
    "last_save_nan": "NaN in the step that was saved last, from its statistics.",
    "last_save_inf": "Infinities in the step that was saved last, from its statistics.",
    "free_bytes": "Free space of the file system of the store.",
}
_Series = tuple[str, str, str]  # name, store, call


class Prometheus:
    """An observer that keeps a file with counters and gauges up to date.

    Counters, such as ``cairn_written_bytes_total{store="...",call="save"}``, begin at zero in each
    process; gauges, such as ``cairn_last_save_timestamp_seconds{store="..."}``, describe the last
    save. The file is replaced atomically after each event. One file is for one process: in a job,
    each rank that observes its store needs its own file and a label that names the rank.

    Threads: any.

    Args:
        path: the file, which the textfile collector reads only if its name ends with ``.prom``.
        labels: additional labels of all series, such as ``{"job": "gpt"}``.

    Raises Invalid if the name does not end with ``.prom``, or a label has a name that is not
    allowed.
    """

    def __init__(
        self, path: str | os.PathLike[str], labels: Mapping[str, str] | None = None
    ) -> None:
        self._path = Path(path)
        if self._path.suffix != ".prom":
            raise Invalid(f"{self._path}: the name must end with .prom", file=str(self._path))
        self._labels = dict(labels or {})
        for name in self._labels:
            if not (name.isascii() and name.isidentifier()) or name in ("store", "call"):
                raise Invalid(f"label {name!r}: letters, digits and _; not 'store' or 'call'")
        self._lock = threading.Lock()  # guards the file and the fields below
        self._counters: dict[_Series, float] = {}
        self._gauges: dict[_Series, float] = {}

    def __call__(self, event: StoreEvent) -> None:
        with self._lock:
            self._count(event)
            partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                partial.write_text(self._text(), encoding="utf-8")
                partial.replace(self._path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise

    def _count(self, event: StoreEvent) -> None:
        values = measures(event)
        values["calls"], values["failures"] = 1, values["failed"]
        for name in _COUNTERS.keys() & values.keys():
            series = (f"{name}_total", event.address, event.kind)
            self._counters[series] = self._counters.get(series, 0) + values[name]
        if event.kind == "save" and event.error is None:
            last = {
                "last_saved_step": event.step,
                "last_save_timestamp_seconds": event.unix_ns / 1e9,
                "last_save_seconds": event.seconds,
                "last_save_stall_seconds": event.stall_seconds,
                "last_save_nan": values.get("nan"),
                "last_save_inf": values.get("inf"),
            }
            for name, value in last.items():
                self._set(name, event.address, value)
        if event.free_bytes is not None:
            self._set("free_bytes", event.address, event.free_bytes)

    def _set(self, name: str, address: str, value: float | None) -> None:
        """None: the last save did not record it, so that an older value must not remain."""
        self._gauges.pop((name, address, ""), None)
        if value is not None:
            self._gauges[name, address, ""] = value

    def _text(self) -> str:
        lines = []
        for kind, helps, found, suffix in (
            ("counter", _COUNTERS, self._counters, "_total"),
            ("gauge", _GAUGES, self._gauges, ""),
        ):
            for name, text in helps.items():
                series = [one for one in sorted(found) if one[0] == name + suffix]
                if series:
                    lines.append(f"# HELP cairn_{name}{suffix} {text}")
                    lines.append(f"# TYPE cairn_{name}{suffix} {kind}")
                lines += [f"{self._identity(one)} {float(found[one])!r}" for one in series]
        return "\n".join(lines) + "\n"

    def _identity(self, series: _Series) -> str:
        name, store, call = series
        labels = {"store": store, **({"call": call} if call else {}), **self._labels}
        inside = ",".join(f'{one}="{_escaped(value)}"' for one, value in labels.items())
        return f"cairn_{name}{{{inside}}}"


def _escaped(value: str) -> str:
    printable = value.encode("utf-8", "backslashreplace").decode()
    return printable.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
