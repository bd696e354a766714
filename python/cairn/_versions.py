"""`Versions`: the calls of a store that name and describe steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn import _cairn
from cairn._base.steps import step_number

if TYPE_CHECKING:
    from cairn.reports import StepInfo


class Versions:
    """The calls of :class:`cairn.Store` that name and describe steps."""

    _native: _cairn.Store

    def tag(self, step: int, name: str) -> None:
        """Names ``step``, so that ``load(step=name)``, ``read(step=name)`` and ``STORE@name`` in
        programs address it, and so that it is never pruned. Another step with this tag loses it.
        In a multi-rank store rank 0 calls this alone.

        ``name`` has 1 to 64 letters, digits, ``.``, ``_`` or ``-``, and not only digits.

        Raises NotFound if the step does not exist; Invalid if this cannot be a tag, or the store
        was opened for reading.
        """
        self._native.change_tag(name, step_number(step))

    def untag(self, name: str) -> None:
        """Removes a tag; the step remains. Raises NotFound if no step has it."""
        self._native.change_tag(name, None)

    def tags(self) -> dict[str, int]:
        """The step of each tag."""
        return self._native.tags()

    def step_info(self, step: int | str) -> StepInfo:
        """The record of ``step``, which is a number or a tag. Raises NotFound."""
        from cairn.reports import StepInfo

        number = self._native.find_tag(step) if isinstance(step, str) else step_number(step)
        names = tuple(name for name, tagged in self.tags().items() if tagged == number)
        return StepInfo(number, names, *self._native.step_summary(number))
