"""`LogLines`: one JSON object per event, with the fields of OpenTelemetry's log data model.

https://opentelemetry.io/docs/specs/otel/logs/data-model/
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from cairn.metrics._measures import measures

if TYPE_CHECKING:
    from cairn.reports import StoreEvent

_SEVERITIES = {"INFO": 9, "WARN": 13, "ERROR": 17}


class LogLines:
    """An observer that appends one line of JSON per event to a file or a stream.

    A line has ``Timestamp`` (nanoseconds since 1970, as text), ``SeverityText``,
    ``SeverityNumber``, ``EventName`` (``cairn.save``), ``Body`` (a sentence), ``Resource``,
    ``InstrumentationScope`` and ``Attributes``: the numbers of :func:`measures`, the address, the
    step, the rank, tags, metrics and the error. A failed call is an ERROR; a save of NaN or
    infinities (with recorded statistics) is a WARN. A number that JSON does not have is the text
    ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.

    A file is opened for each line, so that it may be rotated, and several processes may append to
    the same file of a local file system.

    Threads: any.

    Args:
        target: the path of a file, or a stream that is open for writing text, such as
            ``sys.stderr``.
        resource: attributes of what produces the lines, such as ``{"service.name": "gpt"}``.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | TextIO,
        resource: Mapping[str, str] | None = None,
    ) -> None:
        is_path = isinstance(target, (str, os.PathLike))
        self._target = os.path.join(os.getcwd(), target) if is_path else target
        self._resource = dict(resource or {})
        self._lock = threading.Lock()  # guards the stream

    def __call__(self, event: StoreEvent) -> None:
        line = json.dumps(self._record(event), allow_nan=False) + "\n"
        if isinstance(self._target, (str, os.PathLike)):
            # One write of the system, which appends the complete line.
            with open(self._target, "ab", buffering=0) as file:
                file.write(line.encode())
            return
        with self._lock:
            self._target.write(line)
            self._target.flush()

    def _record(self, event: StoreEvent) -> dict[str, Any]:
        severity = _severity(event)
        return {
            "Timestamp": str(event.unix_ns),
            "SeverityText": severity,
            "SeverityNumber": _SEVERITIES[severity],
            "EventName": f"cairn.{event.kind}",
            "Body": _sentence(event),
            "Resource": self._resource,
            "InstrumentationScope": {"Name": "cairn"},
            "Attributes": _attributes(event),
        }


def _severity(event: StoreEvent) -> str:
    if event.error is not None:
        return "ERROR"
    is_bad = event.health is not None and event.health.nan + event.health.inf > 0
    return "WARN" if is_bad else "INFO"


def _sentence(event: StoreEvent) -> str:
    what = event.kind if event.step is None else f"{event.kind} of step {event.step}"
    if event.mirror is not None:
        what = f"copy of step {event.step} to the mirror {event.mirror}"
    if event.error is not None:
        return f"{what} failed: {event.error}"
    if _severity(event) == "WARN":
        return f"{what} contains values that are not finite: {', '.join(event.health.names)}"
    return f"{what} took {event.seconds:.3f} s"


def _attributes(event: StoreEvent) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cairn.address": event.address,
        "cairn.step": event.step,
        "cairn.rank": event.rank,
        "cairn.world_size": event.world_size,
        "cairn.in_background": event.in_background,
        "cairn.mirror": event.mirror,
    }
    found |= {f"cairn.{name}": _number(value) for name, value in measures(event).items()}
    if event.info is not None:
        found["cairn.tags"] = list(event.info.tags)
        found |= {f"cairn.metric.{name}": _number(one) for name, one in event.info.metrics.items()}
    if event.error is not None:
        found["exception.type"] = type(event.error).__name__
        found["exception.message"] = str(event.error)
    return {name: value for name, value in found.items() if value is not None}


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
