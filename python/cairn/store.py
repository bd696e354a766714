"""The store: what `cairn.open` returns."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.addresses import absolute_address
from cairn._base.open_options import OpenOptions
from cairn._base.patterns import Patterns, clean_prefix, pattern_list
from cairn._base.watched import watched
from cairn._edit import EditableStore
from cairn._load.load import LoadOptions
from cairn._load.map_checks import MapChecks
from cairn._load.step_reader import conversion_of
from cairn._load.tiers import open_nearest
from cairn._merge import MergeableStore
from cairn._mirror.mirrored_saves import MirroredSaves
from cairn._ranks.ranks import choose_ranks
from cairn._retention import Retention
from cairn._save.coordinator_parts import close_abandoned
from cairn._save.handle import Follow, SaveHandle
from cairn._save.options import SaveOptions
from cairn._save.prepare import PreparedSave, prepare_save
from cairn._save.stateful import StatefulAdapter
from cairn._save.streamed_saves import StreamedSaves
from cairn._tensors.host_copies import HostCopies
from cairn._update.live_updates import LiveUpdates
from cairn._versions import Versions
from cairn.errors import Invalid

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from cairn._base.progress import Progress
    from cairn._load.conversions import Rename
    from cairn._mirror.options import Mirrors
    from cairn.reports import LoadReport, SaveReport

_open_stores: weakref.WeakValueDictionary[int, Store] = weakref.WeakValueDictionary()
"""By id. Not a WeakSet, which cannot be copied while another thread opens a store."""


class Store(LiveUpdates, Retention, StreamedSaves, Versions, EditableStore, MergeableStore):
    """Checkpoints in one place: steps, each an immutable map from FQN to tensor or plain value.

    Created by :func:`cairn.open`. The store is a context manager, which closes it.

    Threads: many threads may call methods at the same time. The methods run without the interpreter
    lock, and Ctrl-C ends them. In a multi-rank store, only one thread at a time may make the calls
    that all ranks make. After a fork, the child must open the store again.

    Contents of a state
        Nested ``dict``, ``OrderedDict``, ``Counter``, ``list``, ``tuple`` and ``torch.Size`` with
        keys of type ``str``, ``int``, ``float``, ``bool`` or ``None``. Leaves are torch tensors of
        every dtype except the quantized ones, numpy arrays and scalars of numbers and bools,
        objects that support DLPack (they are loaded as torch tensors), and ``None``, ``bool``,
        ``int``, ``float``, ``complex``, ``str`` and ``bytes``. The FQN of a leaf is its keys joined
        by ``.``; two leaves with the same FQN are refused. Tensor subclasses with
        ``__tensor_flatten__`` are saved as their inner tensors (docs/integrations/torchao.md).
        Other subclasses of these types are refused, because they would be loaded as another type.
        With ``allow_pickle=True``, other objects are pickled if they contain no tensors.

        The state itself, and the values of its top-level dict, may be objects with ``state_dict``
        and ``load_state_dict`` (modules, optimizers, torch's ``Stateful``): a save takes the result
        of the former, and a load fills that result and passes it to the latter.

    Several ranks
        A ``DTensor`` or ``ShardedTensor`` is the part of a tensor that a rank holds. The step
        contains the complete tensor, once, and any mesh and placements can load it. A plain tensor
        is equal on all ranks that have its key, and one of these writes it; each writes about as
        much. If ranks pass different plain values, the lowest rank's is stored. Values that differ
        from rank to rank (random states) need one key per rank, such as ``f"rng.{rank}"``. Ranks
        may have different keys, as the stages of a pipeline do.

    Result of a load
        The same nesting, order, key types and leaf types, bit for bit. Tensors are contiguous and
        in host memory; numpy arrays are in native byte order. Tensors that overlapped in memory,
        such as tied parameters, share memory again. Attributes of containers are not saved, such as
        the ``_metadata`` of a module's ``state_dict()``: these are the versions of its modules,
        which ``load_state_dict`` needs only for states of older versions of torch.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        mode: str = "r",
        process_group: ProcessGroup | None = None,
        options: OpenOptions = OpenOptions(),  # noqa: B008 - immutable
    ) -> None:
        """Private: use :func:`cairn.open`."""
        if mode not in ("r", "a"):
            raise Invalid(f"mode {mode!r}: 'r' reads, 'a' reads and writes")
        options.check(mode)
        self._address = absolute_address(address)
        self._mode = mode
        self._credentials = options.credentials
        self._progress = options.progress
        self._pid = os.getpid()
        self._closed = False
        if self._progress:
            import cairn._base.progress  # noqa: F401 - closing the store may show it
        self._last_save: SaveHandle | None = None
        self._ranks = choose_ranks(process_group, options.alone, options.timeout)
        if mode == "a":
            close_abandoned(self._address)
        # A reader uses the first store that exists.
        self._native, self._address, self._tiers = open_nearest(
            (self._address, *options.fallback), mode == "a", self._ranks.communicator, options
        )
        self._mirrors = MirroredSaves(
            self._address, options, self._native.uuid(), self.rank, self.world_size
        )
        self._map_checks = MapChecks()
        # Host copies of tensors on devices, reused by the next save. Guarded by _copies_lock.
        self._copies = HostCopies()
        self._copies_lock = threading.Lock()
        # Tensors in device memory that running saves may still read. The handles empty the lists.
        self._unstaged: list[list[Any]] = []
        _open_stores[id(self)] = self

    @property
    def rank(self) -> int:
        """Rank of this process among the processes that opened the store together; 0 for one
        process."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of processes that opened the store together; 1 for one process."""
        return self._ranks.world_size

    @property
    def timeout(self) -> float:
        """Seconds that ranks wait for each other in any call."""
        return self._ranks.timeout

    @property
    def transport(self) -> str:
        """How ``load(read_once=True)`` forwards tensors on devices, and why: over NCCL, from device
        to device, or through host memory. The first such load makes the choice, which is the same
        on all ranks. The environment variable ``CAIRN_NCCL`` overrides it
        (docs/communicators.md)."""
        return self._ranks.transport

    @watched("saving", "save")
    def save(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        unchanged: Patterns = None,
        chunk_bytes: int | None = None,
        deltas: bool | int = False,
        statistics: bool = False,
        compress: bool | None = None,
        share_equal: bool = False,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        mirror: Mirrors | None = None,
        progress: Progress | None = None,
    ) -> SaveReport:
        """Writes ``state`` as ``step``. When it returns, the step is complete and durable.

        Tensors must not change until then; if a thread changes one, the save fails with ``Invalid``
        or stores old and new values. CUDA tensors are read after the work on their current stream,
        others that are not in host memory from a copy. Each rank passes and reports its own part.

        Args:
            step: number of the step, 0 to 2**64 - 1.
            state: nested containers of tensors and plain values (see the class).
            overwrite: replaces the step atomically if it exists.
            incremental: ``False`` also writes chunks that are equal to the base step's.
            base_step: the step to compare with; by default the latest.
            unchanged: patterns of tensors that are as in the base step (docs/torch-training.md).
            chunk_bytes: size of the chunks that tensors are split into; by default 4 MiB.
            deltas: writes only changed elements, 4 times or N (to 64) per chunk (docs/deltas.md).
            statistics: records statistics of the values of each chunk (:meth:`statistics`).
            compress: as in docs/compression.md; by default as :meth:`set_compression` has set.
            share_equal: stores chunks with equal bytes once, whatever their keys are.
            keys: patterns (:meth:`read`) of keys to save; ``"!model.encoder"`` excludes that part.
            prefix: is prepended to each key: ``"model.encoder"`` for a submodule.
            ignore_frozen: excludes parameters that require no gradient, of modules in the state.
            allow_pickle: pickles leaves of other types.
            metrics, note, tags: of rank 0, recorded with the step (:meth:`step_info`, :meth:`tag`).
            mirror: stores to which a thread of rank 0 copies the step (:class:`cairn.Mirror`).
            progress: as in :func:`cairn.open`, for this call.

        Raises:
            Conflict: the step exists.
            Invalid: something cannot be saved (``key``), the store is read-only, or ranks disagree.
            Unavailable: no space or an I/O error; a rank failed or died. The store is unchanged.
        """
        options = SaveOptions(
            overwrite, incremental, base_step, unchanged, chunk_bytes, deltas,
            statistics, compress, share_equal, keys, prefix, ignore_frozen,
            allow_pickle, metrics, tags, note,
        )
        return self._save(step, state, options, mirror)

    @watched("saving", "save", in_background=True)
    def save_async(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        unchanged: Patterns = None,
        chunk_bytes: int | None = None,
        deltas: bool | int = False,
        statistics: bool = False,
        compress: bool | None = None,
        share_equal: bool = False,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        mirror: Mirrors | None = None,
        device_snapshot: bool = False,
        progress: Progress | None = None,
    ) -> SaveHandle:
        """Copies ``state`` into staging memory and writes it in the background.

        The step contains the current state; the caller may change it after
        :meth:`SaveHandle.wait_staged`. The staging memory is as large as the tensors in host memory
        and is reused by the next save. Changed parts of tensors on CUDA devices are copied in the
        background, and the tensors are kept alive until then. Tensors on other devices get host
        copies, which live as long as their storages. A save waits until the save before it has
        ended; so do closing the store and leaving Python. The arguments are the same as for
        :meth:`save`, and:

        Args:
            device_snapshot: first copies what has changed within the device's memory, if enough is
                free, so that ``wait_staged`` returns after that copy.
            progress: as in :func:`cairn.open`, for waits: of the handle, and of this call.

        Raises:
            Conflict: the step exists.
            Invalid: as :meth:`save`. Errors that occur later are raised by
                :meth:`SaveHandle.result`.
        """
        options = SaveOptions(
            overwrite, incremental, base_step, unchanged, chunk_bytes, deltas,
            statistics, compress, share_equal, keys, prefix, ignore_frozen,
            allow_pickle, metrics, tags, note,
        )
        mirrors = self._checked_mirrors(mirror)
        from cairn.reports import SaveReport  # noqa: F401 - for the handle, as in _save

        with self._copies_lock:
            prepared = self._prepare_save(step, state, options, self._copies)
            # The store keeps them alive even if Ctrl-C arrives before there is a handle.
            tensors = prepared.batch.device_owners()
            self._unstaged.append(tensors)
            try:
                native = self._native.save_async(
                    **prepared.arguments, device_snapshot=device_snapshot
                )
            except Exception:
                self._unstaged.pop()
                raise
        copies = self._mirrors.submit(prepared.step, mirrors, native, overwrite)
        follow = Follow(progress or False, self.rank, self._mirrors, copies)
        self._last_save = SaveHandle(native, prepared.step, tensors, prepared.streams, follow)
        self._unstaged = [tensors]  # earlier saves have ended
        return self._last_save

    @watched("loading", "load")
    def load(
        self,
        state: Any,
        step: int | str | None = None,
        strict: bool = True,
        *,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        device: Any = None,
        read_once: bool = False,
        allow_pickle: bool = False,
        skip_damaged: bool = False,
        rename: Rename = None,
        cast: bool = False,
        progress: Progress | None = None,
    ) -> LoadReport:
        """Fills ``state`` in place from ``step`` (by default the latest), leaf by leaf by FQN.

        Tensors and arrays keep their memory, strides and device; dtype and shape must match the
        step. In a DTensor or ShardedTensor, this rank's part is filled, whatever mesh saved the
        step. Meta tensors and meta DTensors are replaced in their container by new tensors with
        memory: Parameters remain Parameters, tied ones remain tied, and
        ``model.load_state_dict(state, assign=True)`` puts them into the model. Plain values are
        replaced in their containers, and tuples that contain them are rebuilt. All of this is
        checked on all ranks before anything changes.

        Objects with ``load_state_dict`` receive what was loaded (modules on the meta device with
        ``assign=True``). ``optimizer.state_dict()`` is partly a copy: pass the optimizer itself, or
        pass the filled state to ``optimizer.load_state_dict``. An optimizer that has not made a
        step has no state to fill (see torch's ``get_state_dict``).

        Args:
            strict: ``False`` allows keys that only one side has; the report names them. In a
                multi-rank store missing keys are reported per rank, and unexpected keys are keys
                that no rank has.
            keys: patterns (see :meth:`read`) of the keys of the state to load. Other keys are
                unchanged, and are neither missing nor unexpected.
            prefix: the prefix of the step's keys before the state's keys. With
                ``prefix="model.encoder"``, ``{"weight": ...}`` is filled from
                ``model.encoder.weight``, and keys without the prefix are skipped. Reports and
                errors name keys as the step does.
            ignore_frozen: skips parameters of modules that require no gradient, whether the step
                has them or not. This needs the modules themselves in the state.
            device: where meta tensors are allocated; by default the device of the process group
                (host memory, if the group supports it), the DTensor's mesh, or torch's default.
            read_once: one rank reads what several ranks need and forwards it, from device to device
                if all ranks have NCCL (see :attr:`transport`). All ranks, or all ranks of a
                pipeline stage, must have the same sharded tensors.
            skip_damaged: leaves of damaged tensors are unchanged, and ``report.skipped`` has their
                errors. Every rank first reads all keys, to find them (:meth:`damaged_keys`).
            rename: how keys of the step become keys of the state, as for :meth:`read`; equal on all
                ranks. Reports, errors and ``keys`` use the new names.
            cast: casts floating-point tensors to the dtypes of the state while they are read.
            progress: as in :func:`cairn.open`, for this call.

        Raises:
            NotFound: the step does not exist; or (strict) the step lacks keys of the state; or no
                key remains to load.
            Invalid: (strict) the state lacks keys of the step; dtypes, shapes or kinds differ.
            Corrupt: the bytes differ from the written bytes. The state is partly filled.
            Unavailable: an I/O error; a rank failed, died, or did not respond in time.
        """
        options = LoadOptions(
            strict, allow_pickle, pattern_list(keys), device, read_once, skip_damaged,
            conversion_of(rename, None, cast, takes_stored=skip_damaged),
        )
        return self._load(state, self._number(step), options, clean_prefix(prefix), ignore_frozen)

    def close(self) -> None:
        """Waits for a running asynchronous save and for background checks, and releases the store.
        May be called again.

        In a multi-rank store each rank waits for the others, at most for the store's timeout. Then
        waits for the copies to mirrors, whose failures are bounded by their timeouts.

        Raises the error of that save, unless its handle has already raised it, of a check, and of
        the copy of the newest step.
        """
        self._close(self._native.close)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # The propagating error is more informative than a failure to close after it.
        try:
            self._abandon(error)
        except Exception as second:
            warnings.warn(f"while the store was closed: {second}", RuntimeWarning)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<cairn.Store {self._address!r} mode={self._mode!r}{state}>"

    def _prepare_save(
        self, step: int, state: Any, options: SaveOptions, copies: HostCopies | None
    ) -> PreparedSave:
        self._map_checks.raise_found()
        self._wait_for_last_save()
        if self._ranks.rank == 0:
            self._keep_pinned()
        return prepare_save(self._native, self._ranks, step, state, options, copies)

    def _save(
        self, step: int, state: Any, options: SaveOptions, mirror: Mirrors | None
    ) -> SaveReport:
        from cairn.reports import SaveReport  # now: once the step is durable, it must not fail

        # Copies that save_async has made are reused, and locked until they are written.
        copies = self._copies if len(self._copies) > 0 else None
        with nullcontext() if copies is None else self._copies_lock:
            mirrors = self._checked_mirrors(mirror)
            prepared = self._prepare_save(step, state, options, copies)
            report = SaveReport(*self._native.save(**prepared.arguments))
        self._mirrors.submit(report.step, mirrors, None, options.overwrite)
        return report

    def _load(
        self, state: Any, step: int | None, options: LoadOptions, prefix: str, ignore_frozen: bool
    ) -> LoadReport:
        def make_adapter() -> StatefulAdapter:
            return StatefulAdapter(state, prefix, ignore_frozen)

        place = self._locate(step, self._tiers) or (self._native, step)  # which raises NotFound
        report = self._load_from(place, make_adapter, options, prefix)
        self._ranks.warn()
        return report

    def _keep_pinned(self) -> None:
        # The policy of the store does not delete what waits for its copy to a mirror.
        self._native.keep_steps(sorted(self._pinned()))

    def _wait_for_last_save(self) -> None:
        # Waits here, where Ctrl-C can end the wait. The error of that save stays with its handle.
        if self._last_save is not None:
            self._last_save._wait()

    def _abandon(self, error: BaseException | None = None) -> None:
        """Closes without waiting for the other ranks, and notifies them: after an error on this
        rank that they may not have. Copies to mirrors are not repeated if they fail, and not waited
        for after Ctrl-C."""
        release = self._native.abandon if self.world_size > 1 else self._native.close
        self._close(release, failed=True, interrupted=isinstance(error, KeyboardInterrupt))

    def _close(
        self, release: Callable[[], None], *, failed: bool = False, interrupted: bool = False
    ) -> None:
        if self._closed:
            return
        last_save, self._last_save = self._last_save, None
        with ExitStack() as stack:
            if self._tiers is not None:
                stack.callback(self._tiers.close)
            stack.callback(self._close_mirrors, failed, interrupted)
            stack.callback(self._release, release)
            stack.callback(self._map_checks.wait)
            if self._writer is not None:
                self._writer.abort()
            if last_save is not None:
                with self._following("saving", self.rank):
                    last_save._wait()
            if self._observers is not None:
                self._observers.wait()
        if last_save is not None and not last_save._is_observed:
            last_save.result()

    def _release(self, release: Callable[[], None]) -> None:
        release()
        self._ranks.disconnect_nccl()
        self._copies.clear()
        self._closed = True
        _open_stores.pop(id(self), None)


def _close_all() -> None:
    # The interpreter must not be torn down while a save of a daemon thread or of a forgotten store
    # is running. A rank that ends with an exception does not wait for the others, which do not know
    # about it.
    error = getattr(sys, "last_value", None)
    try:
        for reference in _open_stores.valuerefs():
            store = reference()
            if store is None or store._pid != os.getpid():
                continue
            try:
                store._abandon(error) if error is not None else store.close()
            except Exception as second:
                with suppress(RuntimeWarning):  # a filter that raises must not keep others open
                    warnings.warn(f"while {store!r} was closed at exit: {second}", RuntimeWarning)
    finally:
        _cairn.skip_destructors_of_busy_process()


atexit.register(_close_all)
