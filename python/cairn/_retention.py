"""Which steps a store keeps, and how the space of the others is freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cairn._base.steps import best_texts, step_number
from cairn._opened.opened import Opened
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn.reports import DeleteReport, RetentionPolicy


def delete(opened: Opened, choose: Callable[[], Iterable[int]]) -> DeleteReport:
    """Deletes the steps that `choose` returns on rank 0. Collective."""
    from cairn.reports import DeleteReport

    opened.ranks.begin("delete")

    def work() -> tuple[Any, ...] | None:
        opened.wait_for_last_save()
        if opened.ranks.rank != 0:
            return None
        numbers = tuple(step_number(step) for step in choose())
        return numbers, *opened.native.delete(numbers, False)

    numbers, *space = opened.ranks.exchange_values(work)[0]
    return DeleteReport(tuple(numbers), *space)


def prune(
    opened: Opened, keep_last: int, keep_every: int, keep_best: str | Iterable[str]
) -> DeleteReport:
    """See `Store.prune`."""
    best = best_texts(keep_best)
    if keep_last == keep_every == len(best) == 0 and (kept := policy(opened)):
        keep_last, keep_every, best = kept.keep_last, kept.keep_every, list(kept.keep_best)
    if keep_last < 0 or keep_every < 0 or keep_last + keep_every + len(best) == 0:
        raise Invalid(
            "prune: state keep_last, keep_every or keep_best, none of them negative; the store "
            "has no policy"
        )

    def doomed() -> list[int]:
        pinned = opened.pinned()
        steps = opened.native.steps_to_delete(keep_last, keep_every, best, None)
        return [step for step in steps if step not in pinned]

    return delete(opened, doomed)


def policy(opened: Opened) -> RetentionPolicy | None:
    """See `Store.policy`."""
    from cairn.reports import RetentionPolicy

    kept = opened.native.retention()
    return RetentionPolicy(*kept) if any(kept) else None
