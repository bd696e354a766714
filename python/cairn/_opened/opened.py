"""`Opened`: what an open store consists of."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.addresses import absolute_address, step_number
from cairn._base.open_options import OpenOptions
from cairn._base.watched import shown
from cairn._mirror import store_mirrors
from cairn._mirror.mirrored_saves import MirroredSaves
from cairn._opened.coordinator_parts import close_abandoned
from cairn._opened.handle import SaveHandle
from cairn._opened.map_checks import MapChecks
from cairn._opened.tiers import open_nearest
from cairn._ranks.ranks import choose_ranks
from cairn._tensors.host_copies import HostCopies
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.observations import Observers
    from cairn._base.progress import Progress
    from cairn._mirror.options import Mirror, Mirrors
    from cairn._opened.continued import LoadedStep
    from cairn.reports import StoreEvent


class Opened:
    """The parts of an open store. :class:`cairn.Store` owns it. The functions that carry out the
    calls of the store take it, and so do the front ends (`cairn.torch`, `cairn.hf`).

    Threads: as :class:`cairn.Store`.
    """

    def __init__(
        self, address: str | os.PathLike[str], mode: str, process_group: Any, options: OpenOptions
    ) -> None:
        if mode not in ("r", "a"):
            raise Invalid(f"mode {mode!r}: 'r' reads, 'a' reads and writes")
        options.check(mode)
        given = absolute_address(address)
        self._given = given, options
        self.mode = mode
        self.credentials = options.credentials
        self.progress: Progress = options.progress
        if self.progress:
            import cairn._base.progress  # noqa: F401 - closing the store may show it
        self.pid = os.getpid()
        self.is_closed = False
        self.ranks = choose_ranks(process_group, options.alone, options.timeout)
        self.ranks.arrival = min(options.timeout, options.arrival)
        if mode == "a":
            close_abandoned(given)
        # A reader uses the first store that exists.
        self.native, self.address, self.tiers = open_nearest(
            (given, *options.fallback), mode == "a", self.ranks.communicator, options
        )
        self.mirrors = MirroredSaves(
            self.address, options, self.native.uuid(), self.ranks.rank, self.ranks.world_size
        )
        self._lock = threading.Lock()  # while `observers` or `writer` is set
        self.observers: Observers | None = None
        self.map_checks = MapChecks()
        # Host copies of tensors on devices, reused by the next save. Guarded by copies_lock.
        self.copies = HostCopies()
        # Of the last save_async, if it stated what is unchanged. Guarded by copies_lock.
        self.known: _cairn.Batch | None = None
        self.copies_lock = threading.Lock()
        # Tensors in device memory that running saves may still read. The handles empty the lists.
        # Set by a save that holds copies_lock, and so is last_save.
        self.unstaged: list[list[Any]] = []
        self.last_save: SaveHandle | None = None
        # The step that was loaded in place, until a later save is found. Equal on all ranks.
        self.loaded: LoadedStep | None = None
        self.writer: Any = None
        """The cairn._save.writer.Writer that is open."""

    def observe(self, observer: Callable[[StoreEvent], object]) -> None:
        """See `Store.observe`."""
        from cairn._base.observations import Observers

        with self._lock:
            if self.observers is None:
                observers = Observers()
                self.mirrors.observe(observers)
                self.observers = observers
        self.observers.add(observer)

    def begin_writer(self, writer: Any) -> None:
        """Raises Invalid if another writer is open."""
        with self._lock:
            if self.writer is not None:
                raise Invalid(
                    "a writer of this store is open: leave its block first", step=writer.step
                )
            self.writer = writer

    def end_writer(self, writer: Any) -> None:
        """Does nothing if this writer is not the one that is open."""
        with self._lock:
            if self.writer is writer:
                self.writer = None

    def for_other_process(self) -> tuple[str, OpenOptions]:
        """The address and the options with which another process opens the store for reading.
        Raises Invalid if this one has it open for writing, or has closed it."""
        address, options = self._given
        problem = "it is closed" if self.is_closed else ""
        if self.mode == "a":
            problem = 'it is open for writing; open it with mode="r" there'
        elif address.startswith("memory:"):
            problem = "it is in the memory of this process"
        if problem:
            raise Invalid(f"the store {address!r} cannot be used in another process: {problem}")
        return address, options._replace(alone=True, progress=False)

    def number(self, step: int | str | None) -> int | None:
        """The number of a step that is given by its number or by a tag."""
        if step is None:
            return None
        return self.native.find_tag(step) if isinstance(step, str) else step_number(step)

    def place_of(self, step: int | str | None) -> tuple[_cairn.Store, int | None]:
        """The store that has the step, or the latest step, and the argument for its `contents`."""
        self.map_checks.raise_found()
        return self.tiers.place_of(self.number(step))

    def contents(self, step: int | str | None, patterns: list[str]) -> _cairn.Contents:
        """What the patterns select of a step, which may be in a fallback store."""
        native, number = self.place_of(step)
        return native.contents(number, patterns)

    def begin_change(self) -> None:
        """Before a step is made: raises what checks of maps have found, waits for the last save,
        and lets the policy of the store keep what waits for its copy to a mirror."""
        self.map_checks.raise_found()
        self.wait_for_last_save()
        if self.ranks.rank == 0:
            self.native.keep_steps(sorted(self.pinned()))

    def wait_for_last_save(self) -> None:
        """Waits here, where Ctrl-C can end the wait. The error of that save stays with its
        handle."""
        last_save = self.last_save  # another thread may close the store
        if last_save is not None:
            last_save.wait_ended()

    def pinned(self) -> set[int]:
        """The steps that must not be pruned, because they wait for a copy."""
        return self.mirrors.pinned() | store_mirrors.pinned(self.address)

    def checked_mirrors(self, mirror: Mirrors | None) -> tuple[Mirror, ...]:
        """The mirrors of a save. Raises Invalid before anything is saved."""
        if mirror is None:
            return ()
        from cairn._mirror.options import mirror_chain

        mirrors = mirror_chain(mirror, self.address)
        self.mirrors.check(mirrors)
        return mirrors

    def close(
        self, release: Callable[[], None], *, failed: bool = False, interrupted: bool = False
    ) -> None:
        """Ends what is running, and closes the store with `release`. May be called again.

        ``failed``: a copy to a mirror that fails is not repeated. ``interrupted``: copies are not
        waited for.
        """
        if self.is_closed:
            return
        last_save, self.last_save = self.last_save, None
        with ExitStack() as stack:
            stack.callback(self.tiers.close)
            stack.callback(self._close_mirrors, failed, interrupted)
            stack.callback(self._release, release)
            stack.callback(self.map_checks.wait)
            writer = self.writer
            if writer is not None:
                writer.abort()
            if last_save is not None:
                with self._following("saving", self.ranks.rank):
                    last_save.wait_ended()
            if self.observers is not None:
                self.observers.wait()
        if last_save is not None and not last_save.is_observed:
            last_save.result()

    def _close_mirrors(self, failed: bool, interrupted: bool) -> None:
        with self._following("copying to mirrors", 0):
            self.mirrors.close(failed=failed, interrupted=interrupted)

    def _release(self, release: Callable[[], None]) -> None:
        release()
        self.ranks.disconnect_nccl()
        self.copies.clear()
        self.is_closed = True

    def _following(self, task: str, rank: int) -> AbstractContextManager[None]:
        """Shows the progress of what is waited for while the store is closed."""
        function = self.progress
        if not callable(function):
            return shown(function, task, rank)

        def follow(done: int, total: int) -> None:
            function(done, total)  # what it returns is ignored: this cannot be cancelled

        return shown(follow, task, rank)
