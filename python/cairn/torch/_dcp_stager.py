"""`CairnStager`: staging for `torch.distributed.checkpoint.async_save`."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from cairn.torch._stager import StateDictStager


class CairnStager:
    """An ``AsyncStager`` that reuses its host copies from save to save (:class:`StateDictStager`).

        stager = CairnStager()                      # once, before the loop
        future = dcp.async_save(state, storage_writer=..., async_stager=stager)
        ...
        future.result()                             # before the next async_save
        stager.close()                              # after the last one

    A save that starts while another is still writing gets separate host copies. To avoid their
    memory, wait for the future first.

    Threads: one caller at a time.

    Args:
        pinned: page-locks copies from CUDA devices, as in :class:`StateDictStager`.
        shared: places the copies in shared memory, which ``AsyncCheckpointerType.PROCESS`` sends
            without copying. Otherwise torch moves them there at the first save; this is not
            possible for pinned copies.
        background: stages on a thread, so that ``async_save`` returns immediately with a future for
            the staging. The state must not change before the future is done.
    """

    # Part of torch's protocol, which this follows without importing it.
    _synchronize_after_execute = False

    def __init__(
        self, *, pinned: bool | None = None, shared: bool = False, background: bool = False
    ) -> None:
        self._stager = StateDictStager(pinned=pinned, shared=shared)
        self._thread = ThreadPoolExecutor(1, "cairn-stager") if background else None
        self._staging: Future[Any] | None = None

    @property
    def stager(self) -> StateDictStager:
        """The underlying stager, for its counters."""
        return self._stager

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: staging without a thread is complete when `stage` returns."""
        return self._synchronize_after_execute

    def stage(self, state_dict: Any, **_unused: Any) -> Any:
        """Returns the staged state, or with `background` a future of it. Raises as
        :meth:`StateDictStager.stage`."""
        if self._thread is None:
            return self._stager.stage(state_dict)
        uses_cuda = torch.cuda.is_initialized()
        stream = torch.cuda.current_stream() if uses_cuda else None
        self._staging = self._thread.submit(self._stage_on, stream, state_dict)
        return self._staging

    def _stage_on(self, stream: Any, state_dict: Any) -> Any:
        # The caller's stream, so that the copies run after the work that the caller has enqueued.
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            return self._stager.stage_async(state_dict).wait()

    def synchronize_staging(self) -> None:
        """Waits until the last staging is complete, and raises its error if it failed."""
        if self._staging is not None:
            self._staging.result()

    def close(self) -> None:
        """Waits for a running staging, and drops all copies. May be called again."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._stager.close()
