"""From which step a save continues if another store object has loaded it.

Programs load through a reader (`cairn.open`, `CairnReader`), and open the store again to save. They
also evaluate other steps through readers while they train. A save below the latest step shows that
the run has gone back, so it continues from what a reader has loaded. Any other save continues from
the latest step.
"""

from __future__ import annotations

from typing import Any

from cairn import _cairn

_loaded: dict[str, Any] = {}
"""The StepInfo of the step that a reader in this process has loaded since the last save, by uuid of
the store."""


def note_loaded(native: _cairn.Store, step: Any) -> None:
    """States that `step` was loaded through a store that is open for reading."""
    _loaded[native.uuid()] = step


def continue_from_loaded(native: _cairn.Store, step: int) -> None:
    """The save of `step`, which begins after this, continues from the step that was noted if the
    run has gone back to it. The note is used once."""
    loaded = _loaded.pop(native.uuid(), None) if _loaded else None
    if loaded is not None and not native.has_loaded() and step < (native.latest() or 0):
        native.continue_from(loaded)
