"""`TensorBoard`: scalars of each event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn.metrics._measures import LastStep, measures, series

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from cairn.reports import StoreEvent


class TensorBoard:
    """An observer that adds scalars such as ``cairn/save/written_bytes`` to a writer.

    The x axis is the training step. Events without a step, such as a prune, have that of the call
    before them. Copies to a mirror are named such as ``cairn/mirror/lag_seconds``, those to the
    next mirror of a chain ``cairn/mirror2/lag_seconds``. Threads: any.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``, which the caller closes.
        prefix: what the names of the scalars begin with.
    """

    def __init__(self, writer: SummaryWriter, prefix: str = "cairn") -> None:
        self._writer = writer
        self._prefix = prefix
        self._last = LastStep()

    def __call__(self, event: StoreEvent) -> None:
        step = self._last.of(event)
        for name, value in measures(event).items():
            tag = f"{self._prefix}/{series(event)}/{name}"
            self._writer.add_scalar(tag, value, step, walltime=event.unix_ns / 1e9)
