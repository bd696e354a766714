"""From which step a save continues, and with which one it is compared.

A save is compared with the step that its store has loaded in place, and not with the latest one,
which may be damaged or of another run: a chunk with the same digest is not written again. If a copy
in another store was loaded instead of the own one, the own one may be damaged, and everything is
written once.

Programs load through a reader (`cairn.open`, `CairnReader`), and open the store again to save. They
also evaluate other steps through readers while they train. A save below the latest step shows that
the run has gone back, so it continues from what a reader has loaded, and is compared with it, as is
a save that replaces the latest step. If the reader has loaded a copy in another store, the save
writes everything. Any other save continues from the latest step.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn
from cairn.errors import NotFound

if TYPE_CHECKING:
    from cairn._opened.opened import Opened


class LoadedStep(NamedTuple):
    """A step that was loaded in place."""

    info: Any
    is_own: bool
    """It was read from the store itself, and not from a fallback or a mirror."""

    def base_arguments(self) -> dict[str, Any]:
        return {"base_step": self.info.step} if self.is_own else {"incremental": False}


class _Note(NamedTuple):
    """A step that a reader in this process has loaded."""

    loaded: LoadedStep
    latest_attempt: str | None
    """That of the latest step at that time: another one shows that a step was saved since."""


_notes: dict[str, _Note] = {}
"""By uuid of the store."""


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
    return loaded.base_arguments()


def note_loaded(native: _cairn.Store, step: Any, *, is_own: bool = True) -> None:
    """States that `step` was loaded through a store that is open for reading."""
    _notes[native.uuid()] = _Note(LoadedStep(step, is_own), _latest_attempt(native))


def noted_base(native: _cairn.Store, step: int) -> dict[str, Any]:
    """As `base_arguments`, for what a reader has loaded, if the save of `step` shows that the run
    has gone back to it. That may also be a copy in another store."""
    if not _notes or step > (native.latest() or 0):
        return {}
    note = _note_of(native)
    if note is None:
        own = native.uuid()
        copies = [other.loaded for uuid, other in _notes.items() if uuid != own]
        has_loaded_copy = not native.has_loaded() and any(_has(native, each) for each in copies)
        return {"incremental": False} if has_loaded_copy else {}
    if not _has(native, note.loaded):
        return {"incremental": False}  # it was deleted, and later ones may be damaged
    return note.loaded.base_arguments()


def continue_from_loaded(native: _cairn.Store, step: int) -> None:
    """The save of `step`, which begins after this, continues from the step that was noted if the
    run has gone back to it."""
    if not _notes or step >= (native.latest() or 0):
        return
    note = _note_of(native)
    if note is not None:
        native.continue_from(note.loaded.info)


def _note_of(native: _cairn.Store) -> _Note | None:
    """The note for the next save: until a step is saved, if the store has loaded no other one."""
    note = _notes.get(native.uuid())
    if note is None or note.latest_attempt != _latest_attempt(native):
        return None
    if native.has_loaded() and native.has_continued(note.loaded.info) is None:
        return None
    return note


def _has(native: _cairn.Store, loaded: LoadedStep) -> bool:
    """Whether the store has the step or a copy of it."""
    with suppress(NotFound):
        return native.step_info(loaded.info.step).attempt == loaded.info.attempt
    return False


def _latest_attempt(native: _cairn.Store) -> str | None:
    with suppress(NotFound):
        return native.step_info(None).attempt
    return None
