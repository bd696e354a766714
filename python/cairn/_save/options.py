"""The options of a save, in one object from `Store.save` down to the C++ call."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn
from cairn._base.addresses import best_texts
from cairn._base.patterns import Patterns
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._save.tuning import SaveTuning


def record_pairs(
    records: Mapping[str, Any], may_remove: bool = False
) -> list[tuple[str, bytes | None]]:
    """Names and bytes of records, as C++ takes them. None removes a record, if permitted."""
    if not isinstance(records, Mapping):
        raise TypeError(f"records are a dict of names and bytes, not {type(records).__name__}")
    for name in records:
        if not isinstance(name, str) or any(x == "\0" or "\ud800" <= x <= "\udfff" for x in name):
            raise Invalid(f"{name!r}: the name of a record must be Unicode text without NUL")
    pairs: list[tuple[str, bytes | None]] = []
    for name, data in records.items():
        try:  # bytes() of a number would be so many zeros
            pairs.append((name, None if data is None and may_remove else bytes(memoryview(data))))
        except TypeError:
            kind = type(data).__name__
            raise Invalid(f"the record {name!r} must be bytes and is {kind}") from None
    return pairs


def recordable_metrics(
    metrics: Mapping[str, float], keep_best: str | Iterable[str]
) -> dict[str, float]:
    """Those of the metrics of a trainer that a step can have; those of `keep_best` first. Warns of
    others."""
    best = {text.partition(":")[0] for text in best_texts(keep_best)}
    most = _cairn.MAX_METRICS
    names = filter(_cairn.is_metric_name, sorted(metrics, key=lambda name: name not in best))
    recorded = {name: float(metrics[name]) for name in itertools.islice(names, most)}
    if left_out := [name for name in metrics if name not in recorded]:
        text = f"steps record {most} metrics, with names of letters, digits, '.', '_', '-' and '/'"
        warnings.warn(f"{text}; left out: {left_out}", RuntimeWarning, stacklevel=3)
    return recorded


class SaveOptions(NamedTuple):
    """Options of `Store.save` and `Store.save_async`, which document them."""

    overwrite: bool = False
    keys: Patterns = None
    prefix: str = ""
    allow_pickle: bool = False
    metrics: Mapping[str, float] | None = None
    tags: Iterable[str] = ()
    note: str = ""
    tuning: SaveTuning | None = None

    def tuned(self, name: str) -> Any:
        """A field of the tuning; None if there is none."""
        return None if self.tuning is None else getattr(self.tuning, name, None)

    def annotations(self) -> dict[str, Any]:
        """The keyword arguments of `_cairn.Store.save` that only count on rank 0."""
        if isinstance(self.tags, str):
            raise Invalid(f"tags={self.tags!r}: must be several names, such as [{self.tags!r}]")
        metrics = [(name, float(value)) for name, value in dict(self.metrics or {}).items()]
        texts = [self.note, *self.tags, *(name for name, _ in metrics)]
        if not all(isinstance(text, str) for text in texts):
            raise Invalid("a note, tags and the names of metrics must be text")
        if any("\ud800" <= one <= "\udfff" for text in texts for one in text):
            raise Invalid("a note, tags and the names of metrics must be valid Unicode")
        run = self.tuned("run")
        if run is not None and not (isinstance(run, str) and re.fullmatch("[0-9a-fA-F]{32}", run)):
            raise Invalid(f"run={run!r}: a run has 32 hex digits")
        return {
            "metrics": metrics,
            "note": self.note,
            "tags": list(self.tags),
            "records": record_pairs(self.tuned("records") or {}),
            "parent": self.tuned("parent"),
            "run": None if run is None else bytes.fromhex(run),
        }

    def native(self) -> dict[str, Any]:
        """The keyword arguments of `_cairn.Store.save` that the caller chooses. They must be equal
        on all ranks."""
        if self.tuning is None:
            return {"overwrite": self.overwrite}
        from cairn._save.tuning import SaveTuning

        if not isinstance(self.tuning, SaveTuning):
            raise TypeError(f"tuning={self.tuning!r}: a cairn.SaveTuning is needed")
        return {"overwrite": self.overwrite, **self.tuning.native()}
