"""What the observers of a store learn about the copies to its mirrors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cairn._base.addresses import canonical_address
from cairn._base.observations import free_bytes, repeated_requests
from cairn.reports import MirrorReport, StoreEvent

if TYPE_CHECKING:
    from cairn._mirror.job import MirrorJob
    from cairn._mirror.options import Mirror
    from cairn._mirror.replica import Copied


def copy_event(
    address: str,
    world_size: int,
    job: MirrorJob,
    mirror: Mirror,
    number: int,
    clock: CopyClock,
    end: Copied | Exception,
) -> StoreEvent:
    """The event of a step once a mirror has it or never gets it.

    ``address`` is that of the store, which ``world_size`` ranks have open together; ``number`` that
    of the mirror in its chain, from 1; ``end`` the copy, or its error.
    """
    report = None if isinstance(end, Exception) else _report_of(end, clock)
    return StoreEvent(
        kind="mirror",
        address=canonical_address(address),
        rank=0,
        world_size=world_size,
        step=job.step,
        unix_ns=time.time_ns(),
        seconds=clock.seconds(),
        stall_seconds=0.0,
        in_background=True,
        report=report,
        error=end if isinstance(end, Exception) else None,
        info=None,
        health=None,
        free_bytes=free_bytes(str(mirror)),
        retries=clock.retries(),
        mirror=canonical_address(str(mirror)),
        mirror_number=number,
    )


def _report_of(copied: Copied, clock: CopyClock) -> MirrorReport:
    done = copied.report
    return MirrorReport(
        step=done.step,
        outcome=done.outcome,
        logical_bytes=done.logical_bytes,
        copied_segments=done.copied_segments,
        copied_bytes=done.copied_bytes,
        reused_segments=done.reused_segments,
        attempts=clock.attempts,
        seconds=clock.seconds(),
        lag_seconds=max(0.0, (time.time_ns() - copied.created_unix_ns) / 1e9),
    )


class CopyClock:
    """The time, the attempts and the repeated requests of one copy, from its first attempt on.
    Threads: one."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = str(mirror)
        self._begin = time.monotonic()
        self._repeated = repeated_requests(self._mirror)
        self.attempts = 0

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def retries(self) -> int | None:
        now = repeated_requests(self._mirror)
        if now is None or self._repeated is None:
            return None
        return now - self._repeated if self.attempts else 0  # requests of another copy
