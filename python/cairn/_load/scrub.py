"""`Scrub`: a verification of a store that runs again and again in the background."""

from __future__ import annotations

from cairn import _cairn
from cairn.errors import Corrupt


class Scrub:
    """A background scrub (:meth:`cairn.Store.scrub`). It ends with :meth:`stop`, with the ``with``
    block, or when the object is deleted.

    Threads: all methods may be called from any thread.
    """

    def __init__(self, native: _cairn.BackgroundScrub) -> None:
        self._native = native

    @property
    def passes(self) -> int:
        """The number of complete passes."""
        return self._native.state()[0]

    @property
    def bytes_read(self) -> int:
        """Bytes of payload that these passes have read."""
        return self._native.state()[1]

    @property
    def damage(self) -> tuple[Corrupt, ...]:
        """The problems that the last complete pass has found, at most 1000."""
        return tuple(
            Corrupt(text, key=key or None, file=file or None, offset=offset)
            for key, text, file, offset in self._native.state()[3]
        )

    @property
    def damage_count(self) -> int:
        """How many problems the last complete pass has found."""
        return self._native.state()[2]

    @property
    def error(self) -> str | None:
        """Why the last pass could not be completed, such as a storage that cannot be reached; the
        next pass tries again."""
        return self._native.state()[4]

    @property
    def is_running(self) -> bool:
        """Whether a pass is running; otherwise the scrub waits for the next one."""
        return self._native.state()[5]

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes of payload that the running pass, or the last one, has verified, and those that it
        has to verify. These are 0 while the pass checks the records, which it does first."""
        state = self._native.state()
        return state[6], state[7]

    def stop(self) -> None:
        """Ends the scrub, and waits for its current request. May be called again."""
        self._native.stop()

    def __enter__(self) -> Scrub:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
