"""`Scrub`: a verification of a store that runs again and again in the background."""

from __future__ import annotations

from cairn import _cairn
from cairn._base.closing import Closing
from cairn.errors import Corrupt


class Scrub(Closing):
    """A background scrub (:meth:`cairn.Store.scrub`). It ends with :meth:`stop`, with the ``with``
    block, or when the object is deleted.

    Threads: all methods may be called from any thread.
    """

    def __init__(self, native: _cairn.BackgroundScrub) -> None:
        self._native = native

    @property
    def passes(self) -> int:
        """The number of complete passes."""
        return self._native.state().passes

    @property
    def bytes_read(self) -> int:
        """Bytes of payload that these passes have read."""
        return self._native.state().bytes_read

    @property
    def damage(self) -> tuple[Corrupt, ...]:
        """The problems that the last complete pass has found, at most 1000."""
        return tuple(
            Corrupt(one.text, key=one.key or None, file=one.file or None, offset=one.offset)
            for one in self._native.state().damage
        )

    @property
    def damage_count(self) -> int:
        """How many problems the last complete pass has found."""
        return self._native.state().damage_count

    @property
    def error(self) -> str | None:
        """Why the last pass could not be completed, such as a storage that cannot be reached; the
        next pass tries again."""
        error = self._native.state().error
        return None if error is None else error.text

    @property
    def is_running(self) -> bool:
        """Whether a pass is running; otherwise the scrub waits for the next one."""
        return self._native.state().is_running

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes of payload that the running pass, or the last one, has verified, and those that it
        has to verify. These are 0 while the pass checks the records, which it does first."""
        state = self._native.state()
        return state.pass_bytes, state.pass_total_bytes

    def stop(self) -> None:
        """Ends the scrub, and waits for its current request. May be called again."""
        self._native.stop()

    close = stop
