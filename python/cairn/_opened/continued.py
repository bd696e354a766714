"""From which step a save continues, and with which one it is compared.

A save is compared with the step that its store has loaded in place, and not with the latest one,
which may be damaged or of another run: a chunk with the same digest is not written again. If a copy
in another store was loaded instead of the own one, the own one may be damaged, and everything is
written once.

Programs load through a reader (`cairn.open`, `CairnReader`), and open the store again to save. They
also evaluate other steps through readers while they train. A save below the latest step shows that
the run has gone back, so it continues from what a reader has loaded. Any other save continues from
the latest step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn

if TYPE_CHECKING:
    from cairn._opened.opened import Opened

_loaded: dict[str, Any] = {}
"""The StepInfo of the step that a reader in this process has loaded since the last save, by uuid of
the store."""


class LoadedStep(NamedTuple):
    """A step that was loaded in place."""

    info: Any
    is_own: bool
    """It was read from the store itself, and not from a fallback or a mirror."""


def base_arguments(opened: Opened) -> dict[str, Any]:
    """The keyword arguments of `_cairn.Store.save` that choose the base of the next save; none if
    it is the latest step. Collective."""
    loaded = opened.loaded
    if loaded is None:
        return {}
    has_step = opened.ranks.on_first(lambda: opened.native.has_continued(loaded.info))
    if has_step is None:  # another step was saved since
        opened.loaded = None
    if not has_step:
        return {}
    return {"base_step": loaded.info.step} if loaded.is_own else {"incremental": False}


def note_loaded(native: _cairn.Store, step: Any) -> None:
    """States that `step` was loaded through a store that is open for reading."""
    _loaded[native.uuid()] = step


def continue_from_loaded(native: _cairn.Store, step: int) -> None:
    """The save of `step`, which begins after this, continues from the step that was noted if the
    run has gone back to it. The note is used once."""
    loaded = _loaded.pop(native.uuid(), None) if _loaded else None
    if loaded is not None and not native.has_loaded() and step < (native.latest() or 0):
        native.continue_from(loaded)
