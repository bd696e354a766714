"""`EditableStore`: the call of a store that makes a step of the records of others."""

from __future__ import annotations

from collections.abc import Mapping

from cairn import _cairn
from cairn._base.patterns import Patterns, clean_prefix, pattern_list
from cairn._base.steps import step_number
from cairn.errors import Invalid


class EditableStore:
    """The call of :class:`cairn.Store` that makes a step of the records of others."""

    _native: _cairn.Store

    def _wait_for_last_save(self) -> None:
        raise NotImplementedError

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
        self._native.edit(
            step_number(step),
            into=step_number(into),
            drop=pattern_list(drop),
            rename=list((rename or {}).items()),
            graft_from=None if graft_from is None else step_number(graft_from),
            graft=pattern_list(graft),
            under=clean_prefix(under),
            overwrite=overwrite,
        )
