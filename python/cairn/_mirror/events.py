"""What the observers of a store learn about the copies to its mirrors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cairn._base.addresses import canonical_address
from cairn._base.observations import free_bytes, repeated_requests
from cairn.reports import MirrorReport, StoreEvent

if TYPE_CHECKING:
    from cairn._mirror.options import Mirror
    from cairn._mirror.replica import Copied


class CopyClock:
    """One copy of a step, from its first attempt on: its time, attempts and repeated requests.
    Threads: one.

    Args:
        number: of the mirror in its chain, from 1.
    """

    def __init__(self, step: int, mirror: Mirror, number: int) -> None:
        self._step, self._mirror, self._number = step, str(mirror), number
        self._begin = time.monotonic()
        self._repeated = repeated_requests(self._mirror) or 0
        self.attempts = 0

    def event(self, address: str, world_size: int, end: Copied | Exception) -> StoreEvent:
        """The event of the step once the mirror has it or never gets it. ``address`` is that of the
        store, which ``world_size`` ranks have open together."""
        seconds = time.monotonic() - self._begin
        error = end if isinstance(end, Exception) else None
        retries = repeated_requests(self._mirror)
        if retries is not None:  # without an attempt, they are requests of another copy
            retries = retries - self._repeated if self.attempts else 0
        return StoreEvent(
            kind="mirror",
            address=canonical_address(address),
            rank=0,
            world_size=world_size,
            step=self._step,
            unix_ns=time.time_ns(),
            seconds=seconds,
            stall_seconds=0.0,
            in_background=True,
            report=None if isinstance(end, Exception) else self._report(end, seconds),
            error=error,
            info=None,
            health=None,
            free_bytes=free_bytes(self._mirror),
            retries=retries,
            mirror=canonical_address(self._mirror),
            mirror_number=self._number,
        )

    def _report(self, copied: Copied, seconds: float) -> MirrorReport:
        done = copied.report
        return MirrorReport(
            step=done.step,
            outcome=done.outcome,
            logical_bytes=done.logical_bytes,
            copied_segments=done.copied_segments,
            copied_bytes=done.copied_bytes,
            reused_segments=done.reused_segments,
            attempts=self.attempts,
            seconds=seconds,
            lag_seconds=max(0.0, (time.time_ns() - copied.created_unix_ns) / 1e9),
        )
