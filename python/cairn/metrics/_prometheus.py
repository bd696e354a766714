"""`Prometheus`: a file in the text format of Prometheus.

The textfile collector of node_exporter reads such files.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cairn._base.files import replace_file
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
    "rank_logical_bytes": "Bytes of the tensors of saved steps, of one rank of several.",
    "rank_written_bytes": "Bytes of payload that one rank of several has written.",
    "bytes_read": "Bytes that were read from storage.",
    "copied_bytes": "Bytes of segments that were copied to mirrors.",
    "freed_bytes": "Bytes of files that no step uses any more.",
    "chunks": "Chunks of saved steps.",
    "chunks_reused": "Chunks of saved steps that were not written, because the store had them.",
    "retries": "Requests to buckets that were sent again.",
}
_GAUGES = {
    "last_saved_step": "Number of the step that was saved last.",
    "last_save_timestamp_seconds": "When the last save succeeded, in seconds since 1970.",
    "last_save_seconds": "Time until the step that was saved last was durable.",
    "last_save_stall_seconds": "Time for which the last save kept its caller waiting.",
    "last_save_nan": "NaN in the step that was saved last, from its statistics.",
    "last_save_inf": "Infinities in the step that was saved last, from its statistics.",
    "last_mirrored_step": "Number of the step that the mirror has received last.",
    "last_mirror_timestamp_seconds": "When the last copy succeeded, in seconds since 1970.",
    "last_mirror_lag_seconds": "From the save of the step that was copied last to its copy.",
    "free_bytes": "Free space of the file system of the store, or of the mirror.",
}
_RESERVED = ("store", "call", "mirror")


class _Series(NamedTuple):
    """The name of a number, and the labels that it has if they are not empty."""

    name: str
    store: str
    call: str = ""
    mirror: str = ""
    rank: str = ""


class Prometheus:
    """An observer that keeps a file with counters and gauges up to date.

    Counters, such as ``cairn_written_bytes_total{store="...",call="save"}``, begin at zero in each
    process; gauges, such as ``cairn_last_save_timestamp_seconds{store="..."}``, describe the last
    save, and with the label ``mirror`` the last copy. The file is replaced atomically after each
    event. One file is for one process: in a job, each rank that observes its store needs its own
    file. The series of a multi-rank store have the label ``rank``. ``sum without (rank)`` counts
    no byte twice (:func:`cairn.metrics.measures`), but each call of all ranks on each of them.

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
        self._path = Path(path).absolute()
        if self._path.suffix != ".prom":
            raise Invalid(f"{self._path}: the name must end with .prom", file=str(self._path))
        self._labels = dict(labels or {})
        for name in self._labels:
            if not (name.isascii() and name.isidentifier()) or name in _RESERVED:
                raise Invalid(
                    f"label {name!r}: letters, digits and _; not {', '.join(map(repr, _RESERVED))}"
                )
        self._lock = threading.Lock()  # guards the file and the fields below
        self._counters: dict[_Series, float] = {}
        self._gauges: dict[_Series, float] = {}

    def __call__(self, event: StoreEvent) -> None:
        with self._lock:
            self._count(event)
            replace_file(self._path, self._text(), durable=False)

    def _count(self, event: StoreEvent) -> None:
        values = measures(event)
        values["calls"], values["failures"] = 1, values["failed"]
        mirror = event.mirror or ""
        rank = str(event.rank) if event.world_size > 1 and "rank" not in self._labels else ""
        place = _Series("", event.address, "", mirror, rank)
        for name in _COUNTERS.keys() & values.keys():
            series = place._replace(name=f"{name}_total", call=event.kind)
            self._counters[series] = self._counters.get(series, 0) + values[name]
        if event.error is None:
            for name, value in _last_values(event, values).items():
                self._set(place._replace(name=name), value)
        if event.free_bytes is not None:
            self._set(place._replace(name="free_bytes"), event.free_bytes)

    def _set(self, series: _Series, value: float | None) -> None:
        """None: the last save did not record it, so that an older value must not remain."""
        self._gauges.pop(series, None)
        if value is not None:
            self._gauges[series] = value

    def _text(self) -> str:
        lines = []
        for kind, helps, found, suffix in (
            ("counter", _COUNTERS, self._counters, "_total"),
            ("gauge", _GAUGES, self._gauges, ""),
        ):
            for name, text in helps.items():
                series = [one for one in sorted(found) if one.name == name + suffix]
                if series:
                    lines.append(f"# HELP cairn_{name}{suffix} {text}")
                    lines.append(f"# TYPE cairn_{name}{suffix} {kind}")
                lines += [f"{self._identity(one)} {float(found[one])!r}" for one in series]
        return "\n".join(lines) + "\n"

    def _identity(self, series: _Series) -> str:
        labels = {name: value for name, value in series._asdict().items() if value}
        name = labels.pop("name")
        inside = ",".join(
            f'{one}="{_escaped(value)}"' for one, value in {**labels, **self._labels}.items()
        )
        return f"cairn_{name}{{{inside}}}"


def _last_values(event: StoreEvent, values: Mapping[str, float]) -> dict[str, float | None]:
    """The gauges of the last save or copy."""
    seconds = event.unix_ns / 1e9
    if event.kind == "save":
        return {
            "last_saved_step": event.step,
            "last_save_timestamp_seconds": seconds,
            "last_save_seconds": event.seconds,
            "last_save_stall_seconds": event.stall_seconds,
            "last_save_nan": values.get("nan"),
            "last_save_inf": values.get("inf"),
        }
    if event.kind == "mirror":
        return {
            "last_mirrored_step": event.step,
            "last_mirror_timestamp_seconds": seconds,
            "last_mirror_lag_seconds": values["lag_seconds"],
        }
    return {}


def _escaped(value: str) -> str:
    printable = value.encode("utf-8", "backslashreplace").decode()
    return printable.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
