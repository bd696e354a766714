"""The reports that the methods of a store return.

Defining a frozen dataclass takes most of a millisecond, so the modules of this package are imported
when one of their classes is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.reports._events import StepHealth, StoreEvent
    from cairn.reports._keys import (
        Diff,
        KeyChange,
        KeyInfo,
        TensorStatistics,
    )
    from cairn.reports._loads import LoadReport, PullReport
    from cairn.reports._saves import SaveReport
    from cairn.reports._steps import (
        CompactReport,
        CopiedStep,
        DeleteReport,
        MergeReport,
        MirrorReport,
        MirrorStatus,
        RetentionPolicy,
        StepInfo,
    )

__all__ = [
    "CompactReport",
    "CopiedStep",
    "DeleteReport",
    "Diff",
    "KeyChange",
    "KeyInfo",
    "LoadReport",
    "MergeReport",
    "MirrorReport",
    "MirrorStatus",
    "PullReport",
    "RetentionPolicy",
    "SaveReport",
    "StepHealth",
    "StepInfo",
    "StoreEvent",
    "TensorStatistics",
]

_MODULES = {
    "Diff": "_keys",
    "KeyChange": "_keys",
    "KeyInfo": "_keys",
    "TensorStatistics": "_keys",
    "StepHealth": "_events",
    "StoreEvent": "_events",
    "LoadReport": "_loads",
    "PullReport": "_loads",
    "SaveReport": "_saves",
    "CompactReport": "_steps",
    "CopiedStep": "_steps",
    "DeleteReport": "_steps",
    "MergeReport": "_steps",
    "MirrorReport": "_steps",
    "MirrorStatus": "_steps",
    "RetentionPolicy": "_steps",
    "StepInfo": "_steps",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"cairn.reports.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
