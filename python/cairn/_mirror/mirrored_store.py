"""`MirroredStore`: the calls of a store that concern its mirrors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn._base.watched import Watched, watched
from cairn._mirror import store_mirrors
from cairn._mirror.mirrored_saves import MirroredSaves

if TYPE_CHECKING:
    from cairn._base.observations import Observers
    from cairn._base.progress import Progress
    from cairn._mirror.options import Mirror, Mirrors
    from cairn.reports import MirrorStatus


class MirroredStore(Watched):
    """The calls of :class:`cairn.Store` that concern its mirrors.

    Threads: all methods may be called from any thread.
    """

    _address: str
    _mirrors: MirroredSaves

    @watched("copying to mirrors")
    def wait_mirrored(
        self, timeout: float | None = None, *, progress: Progress | None = None
    ) -> None:
        """Waits until no step waits for its copy to a mirror. Returns at once on ranks other than
        0. ``progress`` is as in :func:`cairn.open`, for the copies that run.

        Raises TimeoutError after ``timeout`` seconds, and the error of the newest step if it was
        not copied; Unavailable if ``progress`` has returned False, and the copies continue.
        """
        if not self._mirrors.wait(timeout):
            raise TimeoutError(
                f"steps are not in their mirrors after {timeout} s: mirror_status() states why"
            )
        self._mirrors.raise_error()

    def mirror_status(self) -> list[MirrorStatus]:
        """The state of each mirror of this store; an empty list on ranks other than 0."""
        return self._mirrors.status()

    def _observe_mirrors(self, observers: Observers) -> None:
        self._mirrors.observe(observers)

    def _close_mirrors(self, failed: bool, interrupted: bool) -> None:
        with self._following("copying to mirrors", 0):
            self._mirrors.close(failed=failed, interrupted=interrupted)

    def _pinned(self) -> set[int]:
        """The steps that must not be pruned, because they wait for a copy."""
        return self._mirrors.pinned() | store_mirrors.pinned(self._address)

    def _checked_mirrors(self, mirror: Mirrors | None) -> tuple[Mirror, ...]:
        """The mirrors of a save. Raises Invalid before anything is saved."""
        if mirror is None:
            return ()
        from cairn._mirror.options import mirror_chain

        mirrors = mirror_chain(mirror, self._address)
        self._mirrors.check(mirrors)
        return mirrors
