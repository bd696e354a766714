"""From which step the next save continues if another store object has loaded it.

Programs load through a reader (`cairn.open`, `CairnReader`), and open the store again to save.
"""

from __future__ import annotations

from typing import Any

from cairn import _cairn

_loaded: dict[str, Any] = {}
"""The StepInfo of the step that a reader in this process has loaded last, by uuid of the store."""


def note_loaded(native: _cairn.Store, step: Any) -> None:
    """States that `step` was loaded through a store that is open for reading."""
    _loaded[native.uuid()] = step


def continue_from_loaded(native: _cairn.Store) -> None:
    """The next save of a store that was just opened continues from the step that was noted."""
    if _loaded and (step := _loaded.pop(native.uuid(), None)) is not None:
        native.continue_from(step)
