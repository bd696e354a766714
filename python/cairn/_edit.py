"""`EditableStore`: the calls of a store that make a step of the records of others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.open_options import OpenOptions
from cairn._base.patterns import Patterns, clean_prefix, pattern_list
from cairn._base.steps import step_number
from cairn._base.watched import Watched, watched
from cairn.errors import Conflict, Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress


class EditableStore(Watched):
    """The calls of :class:`cairn.Store` that make a step of the records of others."""

    _native: _cairn.Store

    def _wait_for_last_save(self) -> None:
        raise NotImplementedError

    def _keep_pinned(self) -> None:
        raise NotImplementedError

    @watched("moving records", unit="records")
    def edit(
        self,
        step: int,
        *,
        into: int,
        drop: Patterns = None,
        rename: Mapping[str, str] | None = None,
        graft_from: int | None = None,
        graft: Patterns = None,
        under: str = "",
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Makes the step ``into`` of the records of ``step``, with other keys. No payload is read
        or written: the new step refers to the bytes of its sources, which may be deleted
        afterwards. Without changes, it is a copy of ``step`` under another number.

        The changes are made in the order drop, rename, graft, and are committed together. Tensors
        that share memory still do. In a multi-rank store rank 0 calls it alone. See
        docs/editing-steps.md.

        Args:
            drop: patterns (see :meth:`read`) of keys that the new step does not have.
            rename: new names by old ones. An old name is a key, or the beginning of keys before a
                ``.``: ``{"model": "net"}`` renames ``model.wte`` to ``net.wte``.
            graft_from: another step, whose keys are added and replace equal ones.
            graft: patterns of the keys to take from it; by default all.
            under: the key below which they are put; by default they keep their names.
            overwrite: replaces the step ``into`` atomically if it exists.
            progress: as in :func:`cairn.open`, for this call; a function is called with numbers of
                records instead of bytes.

        Raises:
            NotFound: a step does not exist, or a pattern or name selects no key.
            Conflict: the step ``into`` exists; a source was deleted in the meantime; another
                process has taken over the store.
            Invalid: two keys would be equal, or a list would have gaps (``key`` names it); the
                store was opened for reading.
        """
        if graft_from is None and (graft is not None or under):
            raise Invalid("graft= and under= require graft_from=, the step that has the keys")
        self._wait_for_last_save()
        self._keep_pinned()
        self._native.edit(
            step_number(step),
            into=step_number(into),
            drop=pattern_list(drop),
            rename=list(dict(rename or {}).items()),
            graft_from=None if graft_from is None else step_number(graft_from),
            graft=pattern_list(graft),
            under=clean_prefix(under),
            overwrite=overwrite,
        )

    def fork(
        self,
        step: int,
        *,
        into: int | None = None,
        to: Any = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Makes ``step`` the start of another line: a copy under another number, or in another
        store. In this store no payload is read or written (as by :meth:`edit` without changes). In
        another store, only what it lacks is transferred, and every page is verified before it is
        written. ``step`` may be deleted afterwards. Tags are not copied.

        In a multi-rank store rank 0 calls it alone.

        Args:
            into: the number of the copy; in another store by default ``step``.
            to: the other store, open with mode ``"a"``, or its address; it is created if absent.
            overwrite: replaces the step ``into`` atomically if it exists.
            progress: as in :func:`cairn.open`, of the copy to another store. A function may be
                called on other threads.

        Raises:
            NotFound: there is no such step.
            Conflict: the step ``into`` exists, in another store with other contents; ``step`` was
                deleted in the meantime; another process writes to the store that gets the copy.
            Corrupt: bytes that are copied are damaged.
            Invalid: neither ``into`` nor ``to`` is given; the store that gets the copy is open for
                reading.
            Unavailable: a storage failed, or ``progress`` has returned False.
        """
        number = step_number(step)
        if to is None or to is self:
            if into is None:
                raise Invalid("fork: give into= (a number), or to= (another store), or both")
            return self.edit(number, into=into, overwrite=overwrite)
        shown = self._progress if progress is None else progress
        self._wait_for_last_save()
        if isinstance(to, EditableStore):
            return self._copy_to(to, number, into, overwrite, shown)
        with self._open_other(to) as target:
            return self._copy_to(target, number, into, overwrite, shown)

    def _open_other(self, address: str | os.PathLike[str]) -> Any:
        """Opens another store for writing, by this process alone."""
        return type(self)(address, "a", None, OpenOptions(alone=True))  # type: ignore[call-arg]

    def _copy_to(
        self,
        target: EditableStore,
        step: int,
        into: int | None,
        overwrite: bool,
        progress: Progress,
    ) -> None:
        target._wait_for_last_save()
        with ExitStack() as stack:
            follow: Callable[[int, int, int], object] | None = None
            if callable(progress):
                function = progress

                def follow(_: int, done: int, total: int) -> object:
                    return function(done, total)

            elif progress:
                from cairn._base.progress import StepDisplay

                follow = stack.enter_context(StepDisplay("copying step"))
            copied = target._native.copy_from(
                self._native,
                follow,
                steps=[step],
                into=None if into is None else step_number(into),
                overwrite=overwrite,
            )
        if copied[0][1] == "deleted":
            raise Conflict(f"step {step} was deleted during the copy")
