"""`SaveHandle`: a save that runs in the background."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn
from cairn._base.devices import Streams, TensorKeepAlive, stream_of
from cairn._base.watched import shown

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn._mirror.mirrored_saves import MirroredSaves
    from cairn._mirror.replica import MirrorJob
    from cairn.reports import SaveReport


class Follow(NamedTuple):
    """What a handle waits for besides the save, and how its waits show their progress."""

    progress: Progress
    rank: int
    mirrors: MirroredSaves


class SaveHandle:
    """A save that runs in the background.

    Threads: all methods may be called from any thread.
    """

    def __init__(
        self,
        native: _cairn.SaveHandle,
        step: int,
        tensors: list[Any],
        streams: Streams,
        follow: Follow,
    ) -> None:
        """``tensors``: those in device memory, which work on ``streams`` writes."""
        self.native = native
        self._step = step
        self._keep_alive = TensorKeepAlive(native, tensors) if tensors else None
        self._streams = streams
        self._follow = follow
        self._pid = os.getpid()
        self.is_observed = False  # True once result() has returned the report or raised the error
        self.job: MirrorJob | None = None
        """The copies of the step to mirrors. Set by the save."""

    def wait_staged(self, stream: Any = None) -> None:
        """Waits until the state is copied. After this call the caller may change its tensors.

        Tensors in host memory are already copied. Tensors on CUDA devices are copied in the
        background. Without ``stream``, the host waits for these copies. With ``stream``, the host
        only waits until the copies are enqueued (if more has changed than fits into the page-locked
        memory, that takes as long as the disk does). Work that is enqueued on the stream after this
        call runs after the copies from its device, and may therefore change the tensors. All other
        work has to wait for that stream.

        Args:
            stream: a ``torch.cuda.Stream``, or the address of a stream of the current device.

        Raises:
            Invalid: ``stream`` is not a stream.
            Unavailable: the device has failed.
        """
        if stream is not None:
            self.native.make_stream_wait(*stream_of(stream))
            return
        self.native.done()  # raises in a forked child, where nothing would end the wait
        if self._keep_alive is not None:
            self._keep_alive.wait()

    def make_streams_wait(self) -> None:
        """Applies :meth:`wait_staged` to each stream that was current at the save."""
        for device, stream in self._streams:
            self.native.make_stream_wait(device, stream)

    def done(self) -> bool:
        """Returns True once the save has ended, with or without an error."""
        return self.native.done()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits until the step is durable, and shows the progress as ``save_async`` was asked to.
        Ctrl-C ends the wait, but not the save.

        Args:
            timeout: maximum number of seconds to wait; by default there is no limit.

        Raises:
            TimeoutError: the save is still running after ``timeout`` seconds.
            Unavailable: ``progress`` of ``save_async`` has returned False; the save continues.
            Error: the save failed, and the step does not exist.
        """
        with shown(self._follow.progress, f"saving step {self._step}", self._follow.rank):
            ended = self.native.wait(timeout)
        if not ended:
            raise TimeoutError(f"the save of step {self._step} is still running after {timeout} s")
        self.is_observed = True
        return self.native.report()

    def mirrored(self, timeout: float | None = None) -> None:
        """Waits until the step is durable, and then until its mirrors have it.

        Returns at once for a step that no mirror receives. In a multi-rank store only rank 0 waits
        for the mirrors.

        Args:
            timeout: maximum number of seconds to wait; by default there is no limit.

        Raises:
            TimeoutError: a copy is still running after ``timeout`` seconds.
            Unavailable: a mirror could not be reached, or the step was skipped because newer ones
                waited; or ``progress`` of ``save_async`` has returned False, and the copy
                continues.
            Error: the save failed; or the copy failed, and the step exists in the store.
        """
        begin = time.monotonic()
        self.result(timeout)
        follow = self._follow
        if self.job is None:
            return
        left = None if timeout is None else max(0.0, begin + timeout - time.monotonic())
        with shown(follow.progress, f"copying step {self._step}", follow.rank):
            ended = follow.mirrors.wait_for(self.job, left)
        if not ended:
            raise TimeoutError(f"the copy of step {self._step} is still running after {timeout} s")

    def wait_ended(self) -> None:
        """Waits until the save has ended. Does not raise its error."""
        self.native.wait(None)

    def __repr__(self) -> str:
        state = "done" if self._pid == os.getpid() and self.done() else "running"
        return f"<cairn.SaveHandle step={self._step} {state}>"

    def __del__(self) -> None:
        # An error that the caller did not ask for must not be lost.
        if self.is_observed or self._pid != os.getpid() or not self.native.done():
            return
        try:
            self.native.report()
        except Exception as error:
            warnings.warn(f"the save of step {self._step} failed: {error}", RuntimeWarning)
