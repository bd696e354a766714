"""`MirroredSaves`: the mirrors of a `Store`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cairn import _cairn
from cairn._base.addresses import canonical_address
from cairn._base.open_options import OpenOptions
from cairn._mirror.job import is_reported, mark_reported
from cairn._mirror.replica import Source

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cairn._mirror.chain import MirrorChain
    from cairn._mirror.options import Mirror
    from cairn.reports import MirrorStatus


class MirroredSaves:
    """The mirrors to which a store has copied steps, by their addresses. Only rank 0 copies.

    Threads: all methods may be called from any thread. In a forked child they do nothing.
    """

    def __init__(self, address: str, options: OpenOptions, rank: int) -> None:
        self._source = Source(address, options.credentials)
        self._rank = rank
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], tuple[Mirror, ...]] = {}
        self._chains: dict[tuple[str, ...], MirrorChain] = {}

    def submit(
        self,
        step: int,
        mirrors: tuple[Mirror, ...],
        save: _cairn.SaveHandle | None,
        overwrite: bool,
    ) -> list[Future[None]]:
        """See `MirrorChain.submit`. Raises Invalid if a mirror exists with other options."""
        chain = self._chain(mirrors)
        return [] if chain is None else chain.submit(step, mirrors, save, overwrite)

    def check(self, mirrors: tuple[Mirror, ...]) -> None:
        """Raises Invalid if one of the mirrors exists with other options."""
        self._chain(mirrors)

    def catch_up(self, steps: list[int], mirrors: tuple[Mirror, ...]) -> None:
        """See `MirrorChain.catch_up`."""
        chain = self._chain(mirrors)
        if chain is not None:
            chain.catch_up(steps, mirrors)

    def pinned(self) -> set[int]:
        """The steps that must not be pruned, because they wait for a copy."""
        return set().union(*(chain.pinned() for chain in self._all()))

    def begin_close(self) -> None:
        """No more steps are submitted (`MirrorChain.begin_close`)."""
        for chain in self._all():
            chain.begin_close()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no step waits for a copy. Returns False after ``timeout`` seconds."""
        return all(chain.wait(timeout) for chain in self._all())

    def raise_error(self) -> None:
        """Raises why the newest step is not in a mirror, if it is not."""
        for chain in self._all():
            error = chain.error()
            if error is not None:
                mark_reported(error)
                raise error

    def status(self) -> list[MirrorStatus]:
        return [status for chain in self._all() for status in chain.status()]

    def close(self, *, failed: bool = False, interrupted: bool = False) -> None:
        """Waits for the copies, ends the threads, and raises the error of the newest step unless
        it was raised before.

        ``failed``: a copy that fails is not repeated. ``interrupted``: nothing is waited for.
        """
        chains = self._all()
        try:
            for chain in chains:
                chain.begin_close()
                if failed:
                    chain.end_retries()
                if not interrupted:
                    chain.wait()
        finally:
            for chain in chains:
                chain.stop()
            with self._lock:
                self._chains.clear()
        for chain in chains:
            error = chain.error()
            if error is not None and not is_reported(error):
                raise error

    def _all(self) -> list[MirrorChain]:
        if self._pid != os.getpid():
            return []
        with self._lock:
            return list(self._chains.values())

    def _chain(self, mirrors: tuple[Mirror, ...]) -> MirrorChain | None:
        if not mirrors or self._pid != os.getpid():
            return None
        import dataclasses

        from cairn._mirror.chain import MirrorChain, check_same

        credentials = self._source.credentials
        mirrors = tuple(
            dataclasses.replace(mirror, credentials=mirror.credentials or credentials)
            for mirror in mirrors
        )
        key = tuple(canonical_address(str(mirror)) for mirror in mirrors)
        with self._lock:
            # On all ranks, because they must agree on errors.
            check_same(self._known.setdefault(key, mirrors), mirrors)
            if self._rank == 0 and key not in self._chains:
                self._chains[key] = MirrorChain(self._source, mirrors)
            return self._chains.get(key)
