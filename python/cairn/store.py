"""The store: what `cairn.open` returns."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from cairn import _cairn
from cairn._base.devices import TensorKeepAlive, Streams, current_streams, stream_of
from cairn._base.patterns import all_patterns, clean_prefix, literal
from cairn._base.steps import step_number
from cairn._load.load import Load, LoadOptions
from cairn._load.multi_rank_load import plan_together
from cairn._load.read import Reader
from cairn._load.slices import BoxReader, Range
from cairn._ranks.ranks import Ranks, default_group, ranks_of, this_process
from cairn._save.flatten import FlatState, flatten
from cairn._save.multi_rank_save import prepare_together
from cairn._save.stateful import StatefulAdapter
from cairn._tensors.contents import key_info, leaf_at
from cairn._tensors.host_copies import HostCopies
from cairn.errors import Conflict, Invalid, NotFound
from cairn.reports import DeleteReport, Diff, KeyChange, KeyInfo, LoadReport, SaveReport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Patterns = Union[str, Iterable[str], None]
"""One pattern, several, or none: everything."""

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open(
    address: str | os.PathLike[str],
    mode: str = "r",
    process_group: ProcessGroup | None = None,
    *,
    alone: bool = False,
    timeout: float = 1800.0,
) -> Store:
    """Opens a store.

    Under ``torch.distributed`` with more than one rank the ranks of the process group open it
    together, each calling this. Then ``save``, ``save_async``, ``load``, ``delete``, ``prune`` and
    ``close`` are called by every rank, in the same order; what goes wrong on one is raised on all.
    The other methods are each rank's own.

    Args:
        address: ``PATH`` or ``file:PATH``, a directory; of several ranks one that they share.
        mode: ``"r"`` reads, and sees the steps that a writer elsewhere commits from now on. ``"a"``
            reads and writes, making the store if it is absent; one process, or the ranks of one
            group, at a time may hold a store open for writing.
        process_group: whose ranks open it together; by default the default group, if there is one.
            Any backend will do: the group is only used to tell the ranks where they meet.
        alone: this process opens it for itself, whatever process groups there are: a tool, or a
            reader on one rank.
        timeout: seconds that ranks wait for each other in any call before it fails.

    Raises:
        NotFound: no store is there (``"r"``).
        Conflict: another process has it open for writing (``"a"``).
        Corrupt: its index is damaged.
        Invalid: what is there is no store, or of a newer format; a bad mode or address; this
            process is not of the group, or the ranks see different directories.
        Unavailable: permission or I/O error; a rank did not come in time.
    """
    return Store(address, mode, process_group, alone=alone, timeout=timeout)


class SaveHandle:
    """A save that runs in the background. All methods may be called from any thread."""

    def __init__(
        self, native: _cairn.SaveHandle, step: int, tensors: list[Any], streams: Streams
    ) -> None:
        """``tensors``: those in device memory, which ``streams`` write."""
        self._native = native
        self._step = step
        self._keep_alive = TensorKeepAlive(native, tensors) if tensors else None
        self._streams = streams
        self._pid = os.getpid()
        self._asked = False

    def wait_staged(self, stream: Any = None) -> None:
        """Waits until the state is copied; from then on the caller may change its tensors.

        Tensors in host memory are copied already. Those on CUDA devices are copied behind the
        caller's back: the host waits for them, or, with ``stream``, only for the copies to be
        enqueued (as long as the disk takes, where more has changed than fits into the page-locked
        memory). What the stream gets from then on runs after the copies from its device, so that
        work on it may change the tensors; anything else has to wait for that stream.

        Args:
            stream: a ``torch.cuda.Stream``, or the address of a stream of the current device.

        Raises:
            Invalid: that is no stream.
            Unavailable: the device has failed.
        """
        if stream is not None:
            self._native.hold_back(*stream_of(stream))
            return
        self._native.done()  # raises in a forked child, where nothing would end the wait
        if self._keep_alive is not None:
            self._keep_alive.wait()

    def _hold_back_streams(self) -> None:
        """``wait_staged`` for the streams that were current at the save."""
        for device, stream in self._streams:
            self._native.hold_back(device, stream)

    def done(self) -> bool:
        """True once the save has ended, well or not."""
        return self._native.done()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits until the step is durable. Ctrl-C ends the waiting, not the save.

        Args:
            timeout: seconds to wait at most; by default as long as it takes.

        Raises:
            TimeoutError: it still runs after ``timeout`` seconds.
            Error: what went wrong with the save; the step does not exist then.
        """
        if not self._native.wait(timeout):
            raise TimeoutError(f"the save of step {self._step} still runs after {timeout} s")
        self._asked = True
        return SaveReport(*self._native.report())

    def __repr__(self) -> str:
        state = "done" if self._pid == os.getpid() and self.done() else "running"
        return f"<cairn.SaveHandle step={self._step} {state}>"

    def _wait(self) -> None:
        self._native.wait(None)

    def __del__(self) -> None:
        # A failure that nobody asked about must not go unseen.
        if self._asked or self._pid != os.getpid() or not self._native.done():
            return
        try:
            self._native.report()
        except Exception as error:
            warnings.warn(f"the save of step {self._step} failed: {error}", RuntimeWarning)


class Store:
    """Checkpoints in one place: steps, each an immutable map from FQN to tensor or plain value.

    Made by :func:`cairn.open`. A context manager that closes the store. Methods may be called from
    many threads; they run without the interpreter lock, and Ctrl-C ends them. After a fork the
    child must open the store again. Of a store that several ranks have opened, one thread at a time
    makes the calls that all ranks make.

    What a state is
        Nested ``dict``, ``OrderedDict``, ``Counter``, ``list``, ``tuple`` and ``torch.Size`` with
        keys of type ``str``, ``int``, ``float``, ``bool`` or ``None``. Leaves are torch tensors of
        every dtype but the quantized ones, numpy arrays and scalars of numbers and bools, objects
        that speak DLPack (they come back as torch tensors), and ``None``, ``bool``, ``int``,
        ``float``, ``complex``, ``str`` and ``bytes``. The FQN of a leaf is its keys joined by
        ``.``; two leaves with one FQN are refused. Subclasses of these types are refused, as they would come
        back as something else; with ``allow_pickle=True`` other objects without tensors inside are
        pickled.

        The state itself, and the values of its top-level dict, may be objects with ``state_dict``
        and ``load_state_dict`` (modules, optimizers, torch's ``Stateful``): a save takes what the
        one returns, a load fills that and hands it to the other.

    Several ranks
        A ``DTensor`` or ``ShardedTensor`` is the part of a tensor that a rank holds; the step keeps
        the whole, once, and any mesh and placements can load it. A plain tensor is the same on all
        ranks that have its key, and these share the writing of it; of plain values that differ the
        lowest rank's is kept. What differs from rank to rank (random states) needs a key for each,
        such as ``f"rng.{rank}"``. Ranks may have different keys, as stages of a pipeline do.

    What comes back
        The same nesting, order, key types and leaf types, bit for bit. Tensors are contiguous and
        in host memory, numpy arrays in native byte order. Tensors that overlapped in memory share
        memory again, tied parameters among them. Attributes of containers are not kept, such as
        the ``_metadata`` of a module's ``state_dict()``: its modules' versions, which
        ``load_state_dict`` needs only for states of older versions of torch.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        mode: str = "r",
        process_group: ProcessGroup | None = None,
        *,
        alone: bool = False,
        timeout: float = 1800.0,
    ) -> None:
        if mode not in ("r", "a"):
            raise Invalid(f"mode {mode!r}: 'r' reads, 'a' reads and writes")
        self._address = os.fspath(address)
        if not isinstance(self._address, str):
            raise Invalid(f"address {address!r}: a str or a path of str is needed")
        self._mode = mode
        self._pid = os.getpid()
        self._closed = False
        self._last_save: SaveHandle | None = None
        self._ranks = _ranks(process_group, alone, timeout)
        if mode == "a":
            _close_failed_dcp_save(self._address)
        self._native = _cairn.Store(self._address, mode == "a", self._ranks.communicator)
        # Host copies of what lies on devices, kept from save to save; used under the lock alone.
        self._copies = HostCopies()
        self._copies_lock = threading.Lock()
        self._unstaged: list[list[Any]] = []
        """Tensors in device memory of saves that may still read them; emptied by the handles."""
        _open_stores.add(self)

    @property
    def rank(self) -> int:
        """Of this process among those that have the store open together; 0 for one alone."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """How many processes have the store open together; 1 for one alone."""
        return self._ranks.world_size

    @property
    def timeout(self) -> float:
        """Seconds that ranks wait for each other in any call."""
        return self._ranks.timeout

    @property
    def transport(self) -> str:
        """What ``load(read_once=True)`` passes tensors on devices on over, and why: NCCL, from
        device to device, or host memory. All ranks use the same; it is chosen by the first such load
        (the environment variable ``CAIRN_NCCL`` has a say: docs/communicators.md)."""
        return self._ranks.transport

    def save(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        chunk_bytes: int | None = None,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
    ) -> SaveReport:
        """Writes ``state`` as ``step``; when it returns the step is durable, and whole.

        Tensors in host memory and on CUDA devices are read where they are, those on a device after
        the work that its current stream holds; others are copied to host memory first.
        Chunks that the base step has already, bit for bit, are not written again. Of several ranks
        each calls it with what it holds, and the report tells each its own part.

        Args:
            step: number of the step, 0 to 2**64 - 1.
            state: nested containers of tensors and plain values (see the class).
            overwrite: replaces the step if it exists, in one atomic switch.
            incremental: ``False`` writes every byte.
            base_step: the step to compare with; by default the latest.
            chunk_bytes: size of the pieces that tensors are cut into; by default 4 MiB.
            keys: patterns (see :meth:`read`) of the state's keys to save; ``"!model.encoder"``
                leaves that part out. By default all.
            prefix: goes before the name of each key: the state of a submodule, saved as
                ``prefix="model.encoder"``, has the keys that it has in the whole model.
            ignore_frozen: leaves out parameters of modules that take no gradient. It needs the
                modules themselves in the state, not their state dicts, which do not tell.
            allow_pickle: pickles leaves of other types.

        Raises:
            Conflict: the step exists.
            Invalid: something in the state cannot be kept (``key`` says which), or the store was
                opened for reading; ranks disagree about a tensor, or give other arguments.
            Unavailable: no space, or an I/O error; a rank failed otherwise, died, or did not write
                its part in time. The store is as it was.
        """
        # Copies that save_async has made are used again, and held until they are written.
        copies = self._copies if len(self._copies) > 0 else None
        with nullcontext() if copies is None else self._copies_lock:
            number, batch, options, streams = self._prepare_save(
                step,
                state,
                overwrite=overwrite,
                incremental=incremental,
                base_step=base_step,
                chunk_bytes=chunk_bytes,
                keys=keys,
                prefix=prefix,
                ignore_frozen=ignore_frozen,
                allow_pickle=allow_pickle,
                copies=copies,
            )
            return SaveReport(*self._native.save(number, batch, *options, streams))

    def save_async(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        chunk_bytes: int | None = None,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        device_snapshot: bool = False,
    ) -> SaveHandle:
        """Copies ``state`` into staging memory and writes it in the background.

        The step is what the state is now, whatever is changed after :meth:`SaveHandle.wait_staged`.
        The staging memory is as large as the tensors in host memory and is used again by the next
        save. Of tensors on CUDA devices what has changed is copied behind the caller's back, and
        the tensors are kept alive until then; those on other devices get host copies, which are
        kept for as long as their storages live. While one save runs, another waits for it first.
        Closing the store, or leaving Python, waits for it too. Arguments as for :meth:`save`, and:

        Args:
            device_snapshot: first copies what has changed within the device's memory, if that much
                is free, so that ``wait_staged`` is over once that is done.

        Raises:
            Conflict, Invalid: as :meth:`save`, at once. What goes wrong later is raised by
                :meth:`SaveHandle.result`.
        """
        with self._copies_lock:
            number, batch, options, streams = self._prepare_save(
                step,
                state,
                overwrite=overwrite,
                incremental=incremental,
                base_step=base_step,
                chunk_bytes=chunk_bytes,
                keys=keys,
                prefix=prefix,
                ignore_frozen=ignore_frozen,
                allow_pickle=allow_pickle,
                copies=self._copies,
            )
            # Also if Ctrl-C comes before there is a handle.
            tensors = batch.device_owners()
            self._unstaged.append(tensors)
            try:
                native = self._native.save_async(number, batch, *options, streams, device_snapshot)
            except Exception:
                self._unstaged.pop()
                raise
        self._last_save = SaveHandle(native, number, tensors, streams)
        self._unstaged = [tensors]  # earlier saves have ended
        return self._last_save

    def load(
        self,
        state: Any,
        step: int | None = None,
        strict: bool = True,
        *,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        device: Any = None,
        read_once: bool = False,
        allow_pickle: bool = False,
    ) -> LoadReport:
        """Fills ``state`` in place from ``step`` (by default the latest), leaf by leaf by FQN.

        Tensors and arrays keep their memory, strides and device and get new contents; dtype and
        shape must be those of the step. Of a DTensor or ShardedTensor this rank's part is filled,
        whatever the step was saved with. Meta tensors and meta DTensors are replaced, in their
        container, by new ones with memory; Parameters stay Parameters, tied ones stay tied, and
        ``model.load_state_dict(state, assign=True)`` puts them into the model. Plain values are
        replaced in their containers; tuples around them are made anew. All of that is checked, on
        all ranks, before anything is changed.

        Modules and other objects with ``load_state_dict`` get what was loaded (modules on the meta
        device with ``assign=True``). Note that ``optimizer.state_dict()`` is partly a copy: give
        the optimizer itself, or hand the filled state to ``optimizer.load_state_dict``; one that
        has made no step yet has no state to be filled (see torch's ``get_state_dict``).

        Args:
            strict: ``False`` allows keys that only one side has; the report names them. Of several
                ranks each has its own missing keys; unexpected ones are those that no rank has.
            keys: patterns (see :meth:`read`) of the state's keys to load; all others are left alone
                and count as neither missing nor unexpected.
            prefix: what the keys of the step have before those of the state: with
                ``prefix="model.encoder"`` the state ``{"weight": ...}`` is filled from
                ``model.encoder.weight``, and keys that do not begin so are passed over. Reports and
                errors name keys as the step does.
            ignore_frozen: parameters of modules that take no gradient are left alone, whether the
                step has them or not. It needs the modules themselves in the state.
            device: where meta tensors get their memory; by default that of the process group (host
                memory, where the group can use it), of the DTensor's mesh, or torch's default.
            read_once: what several ranks need is read from storage by one of them and passed on,
                from device to device where all ranks have NCCL (see :attr:`transport`).
                Ranks have the same sharded tensors then, or those of their stage of a pipeline.

        Raises:
            NotFound: no such step; or (strict) the step lacks keys of the state; or no key is left
                to load.
            Invalid: (strict) the state lacks keys of the step; dtypes, shapes or kinds differ.
            Corrupt: bytes are not what was written. The state is partly filled then.
            Unavailable: an I/O error; a rank failed otherwise, died, or did not come in time.
        """
        options = LoadOptions(strict, allow_pickle, _pattern_list(keys), device, read_once)
        number = self._agreed_step(step)
        unwrapped: list[StatefulAdapter] = []

        def plan() -> Load:
            unwrapped.append(StatefulAdapter(state, clean_prefix(prefix), ignore_frozen))
            return self._plan_load(unwrapped[0], number, options, clean_prefix(prefix))

        load = plan_together(self._ranks, plan, device)
        report = self._ranks.run_together(load.run)
        # What an object makes of its state may fail on one rank alone.
        self._ranks.run_together(unwrapped[0].load_into_objects)
        self._ranks.warn()
        return report

    def read(
        self,
        patterns: Patterns = None,
        step: int | None = None,
        *,
        device: Any = None,
        mmap: bool = False,
        flat: bool = False,
        verify: bool = True,
        allow_pickle: bool = False,
    ) -> Any:
        """The state of ``step`` (by default the latest), or the part that ``patterns`` select.

        Args:
            patterns: one or more patterns. One without wildcards names a key and all below it:
                ``model.layers.1`` takes ``model.layers.1.attn.wq``, but not
                ``model.layers.10.attn.wq``. ``*`` matches inside one path element, ``**`` across
                elements, ``?`` one character, ``[a-c]`` one of a set. A leading ``!`` excludes.
            device: where torch tensors go; by default host memory.
            mmap: tensors are views of the memory-mapped file where their bytes lie together in it,
                without a copy. numpy arrays refuse to be written to; torch tensors know no such
                thing, and what is written to one stays in this process, in a private copy of the
                page. They stay valid while they live, even if the step is deleted or the store
                closed.
            flat: a dict from FQN to leaf instead of the nesting.
            verify: ``False`` skips the check of mapped bytes, so that only what is touched is read.
                Bytes that are not mapped are always checked.
            allow_pickle: unpickles leaves that were pickled.

        Memory of new torch tensors: those of 1 MiB and more have their own, page by page; smaller
        ones lie in arenas of at most 32 MiB, each freed when the last tensor in it goes. To keep a
        few small tensors of a large state for long, ``clone()`` them. The storage of a tensor is of
        its own size and cannot be resized.

        Returns:
            A new state, nested as it was saved. A list or tuple of which only a part was selected
            comes as a dict from index to element.

        Raises:
            NotFound: no such step, or no key matches.
            Invalid: a malformed pattern, or a pickle that is not allowed.
            Corrupt: bytes are not what was written.
        """
        selected = _pattern_list(patterns)
        contents = self._native.contents(step, selected)
        if selected and len(contents) == 0:
            raise NotFound(
                f"step {contents.step} has no key that matches {selected}: keys() lists them",
                key=selected[0],
                step=contents.step,
            )
        reader = Reader(self._native, contents, device=device, mmap=mmap, verify=verify)
        leaves = reader.read(allow_pickle)
        if flat:
            return dict(zip(contents.fqns(), leaves))
        return contents.build(leaves)

    def read_slice(
        self, fqn: str, ranges: Sequence[Range], step: int | None = None, *, out: Any = None
    ) -> Any:
        """A box of one tensor, reading only the chunks that it touches.

        Args:
            fqn: the tensor's name, no pattern.
            ranges: for each dimension, outermost first, ``(begin, end)`` in elements, a slice
                without step, or an index, which drops the dimension. Dimensions left out are taken
                whole.
            out: tensor or array of the box's shape and the stored dtype to read into.

        Returns:
            ``out``, or a new tensor (numpy array, if the leaf was one).

        Raises:
            NotFound: no such step or key.
            Invalid: the key is a plain value, the box leaves the shape, ``out`` does not fit.
            Corrupt: bytes are not what was written.
        """
        contents = self._native.contents(step, _pattern_for(fqn))
        fqns = contents.fqns()
        if fqn not in fqns:
            raise _no_such_key(fqn, contents.step)
        reader = BoxReader(self._native, contents)
        out = reader.add(fqns.index(fqn), ranges, out)
        reader.read()
        return out

    def read_slices(
        self, boxes: Mapping[str, Sequence[Range]], step: int | None = None
    ) -> dict[str, Any]:
        """Boxes of many tensors in one go, such as one rank's part of every matrix.

        Far quicker than :meth:`read_slice` for each: the step is listed once, and the reads of all
        boxes are sorted, joined and in flight together.

        Args:
            boxes: by name of the tensor, ranges as for :meth:`read_slice`.

        Returns:
            New tensors (numpy arrays, where the leaf was one) by name, in the order of ``boxes``.

        Raises:
            NotFound, Invalid, Corrupt: as :meth:`read_slice`; nothing has been read after the first
                two.
        """
        contents = self._native.contents(step, [])
        places = {fqn: index for index, fqn in enumerate(contents.fqns())}
        reader = BoxReader(self._native, contents)
        results = {}
        for fqn, ranges in boxes.items():
            if fqn not in places:
                raise _no_such_key(fqn, contents.step)
            results[fqn] = reader.add(places[fqn], ranges)
        reader.read()
        return results

    def steps(self) -> list[int]:
        """Numbers of the steps, ascending. A store open for reading sees those of a live writer."""
        return self._native.steps()

    def keys(self, step: int | None = None, pattern: Patterns = None) -> dict[str, KeyInfo]:
        """What ``step`` (by default the latest) holds, by FQN, in the order of the state.

        ``pattern`` is as for :meth:`read`. No tensor is read. Raises NotFound if there is no such
        step; a pattern that takes nothing gives an empty dict.
        """
        contents = self._native.contents(step, _pattern_list(pattern))
        leaves = [leaf_at(contents, i) for i in range(len(contents))]
        return {leaf.fqn: key_info(leaf) for leaf in leaves}

    def diff(self, a: int, b: int, pattern: Patterns = None) -> Diff:
        """How step ``b`` differs from step ``a``, by digests: no tensor is read.

        Raises NotFound if one of them does not exist.
        """
        changes, unchanged = self._native.compare(
            step_number(a), step_number(b), _pattern_list(pattern)
        )
        return Diff(tuple(KeyChange(*change) for change in changes), unchanged)

    def delete(self, *steps: int) -> DeleteReport:
        """Deletes whole steps at once; bytes that other steps refer to stay.

        Raises NotFound, with nothing deleted, if one of them does not exist; Invalid if the store
        was opened for reading.
        """
        return self._delete(lambda: steps)

    def prune(self, *, keep_last: int = 0, keep_every: int = 0) -> DeleteReport:
        """Deletes all steps but the last ``keep_last`` and the multiples of ``keep_every``.

        Raises Invalid if that would keep nothing by intent: at least one must be positive.
        """
        if keep_last < 0 or keep_every < 0 or keep_last + keep_every == 0:
            raise Invalid("prune: keep_last or keep_every must be positive, and none negative")

        def doomed() -> list[int]:
            steps = self.steps()
            recent = set(steps[-keep_last:]) if keep_last else set()
            return [
                step
                for step in steps
                if step not in recent and not (keep_every and step % keep_every == 0)
            ]

        return self._delete(doomed)

    def _delete(self, choose: Callable[[], Iterable[int]]) -> DeleteReport:
        """Of several ranks the first one chooses and deletes for all."""
        self._wait_for_last_save()

        def work() -> bytes:
            if self.rank > 0:
                return b""
            numbers = tuple(step_number(step) for step in choose())
            if not numbers:
                return json.dumps([numbers, 0, 0]).encode()
            _, segments, freed_bytes = self._native.delete(numbers, False)
            return json.dumps([numbers, segments, freed_bytes]).encode()

        numbers, segments, freed_bytes = json.loads(self._ranks.exchange(work)[0])
        return DeleteReport(tuple(numbers), segments, freed_bytes)

    def close(self) -> None:
        """Waits for a running asynchronous save and releases the store. May be called again.

        Of several ranks each waits for the others, at most for the store's timeout.

        Raises what went wrong with that save, if nobody has asked its handle.
        """
        self._close(self._native.close)

    def _abandon(self) -> None:
        """Closes without waiting for other ranks, and lets them know: after an error of this rank
        that they may not have."""
        self._close(self._native.abandon if self.world_size > 1 else self._native.close)

    def _close(self, release: Callable[[], None]) -> None:
        if self._closed:
            return
        last_save, self._last_save = self._last_save, None
        try:
            if last_save is not None:
                last_save._wait()
        finally:
            release()
            self._ranks.disconnect_nccl()
            self._copies.clear()
            self._closed = True
            _open_stores.discard(self)
        if last_save is not None and not last_save._asked:
            last_save.result()

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
        # The error that is on its way says more than one of closing after it.
        try:
            self._abandon()
        except Exception as second:
            warnings.warn(f"while the store was closed: {second}", RuntimeWarning)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<cairn.Store {self._address!r} mode={self._mode!r}{state}>"

    def _prepare_save(
        self,
        step: int,
        state: Any,
        *,
        keys: Patterns,
        prefix: str,
        ignore_frozen: bool,
        allow_pickle: bool,
        copies: HostCopies | None,
        **options: Any,
    ) -> tuple[int, _cairn.Batch, tuple[Any, ...], Streams]:
        """The step's number, and what the C++ side takes; on several ranks, agreed between them.
        With the current streams of the devices that hold some of the state."""
        self._wait_for_last_save()

        def flat() -> tuple[dict[str, Any], FlatState]:
            arguments = {"step": step_number(step), **options}
            self._check_new(arguments["step"], options["overwrite"])
            unwrapped = StatefulAdapter(state, clean_prefix(prefix), ignore_frozen)
            patterns = all_patterns(_pattern_list(keys), clean_prefix(prefix), unwrapped.frozen)
            flattened = flatten(
                unwrapped.state, allow_pickle, self._ranks, patterns, copies, devices=True
            )
            return arguments, flattened

        arguments, flattened = prepare_together(self._ranks, flat)
        number = arguments.pop("step")
        streams = current_streams(flattened.batch.devices())
        return number, flattened.batch, (*arguments.values(), self._ranks.timeout), streams

    def _check_new(self, step: int, overwrite: bool) -> None:
        """Of several ranks the first looks for all, before anything is copied; one process alone
        is told by the C++ side."""
        if self.world_size > 1 and self.rank == 0 and not overwrite and step in self.steps():
            raise Conflict(
                f"step {step} exists already; overwrite it or give another number", step=step
            )

    def _agreed_step(self, step: int | None) -> int | None:
        """The step to load; of several ranks the latest one that the first of them sees."""
        if self.world_size == 1:
            return step

        def encode_local() -> bytes:
            if step is not None:
                return json.dumps([step_number(step), True]).encode()
            steps = self.steps()
            # Without any, this raises what says so.
            latest = steps[-1] if steps else self._native.contents(None, []).step
            return json.dumps([latest, False]).encode()

        replies = [json.loads(one) for one in self._ranks.exchange(encode_local)]
        number, is_given = replies[0]
        if any(one[1] != is_given or (is_given and one[0] != number) for one in replies):
            asked = [one[0] if one[1] else None for one in replies]
            raise Invalid(f"ranks load different steps, by rank: {asked}")
        return number

    def _plan_load(
        self, unwrapped: StatefulAdapter, step: int | None, options: LoadOptions, prefix: str
    ) -> Load:
        patterns = all_patterns(options.patterns, prefix, unwrapped.frozen)
        contents = self._native.contents(step, patterns)
        if len(contents) == 0 and (options.patterns or prefix):
            raise NotFound(
                f"step {contents.step} has no key that matches {patterns}: keys() lists them",
                key=patterns[0],
                step=contents.step,
            )
        options = dataclasses.replace(options, patterns=patterns)
        return Load(self._native, unwrapped.state, contents, options, self._ranks)

    def _wait_for_last_save(self) -> None:
        # Here, where Ctrl-C can end the waiting; its error stays with its handle.
        if self._last_save is not None:
            self._last_save._wait()


def _close_failed_dcp_save(address: str) -> None:
    # It may hold the store open still. Without the module loaded there was none.
    saves = sys.modules.get("cairn.dcp._saves")
    if saves is not None:
        saves.close_abandoned(address)


def _no_such_key(fqn: str, step: int) -> NotFound:
    return NotFound(f"step {step} has no key '{fqn}': keys() lists them", key=fqn, step=step)


def _pattern_list(patterns: Patterns) -> list[str]:
    if patterns is None:
        return []
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _pattern_for(fqn: str) -> list[str]:
    """Patterns that take `fqn`, whatever it holds, and perhaps some more."""
    return [literal(fqn)] if fqn else []


def _ranks(process_group: ProcessGroup | None, alone: bool, timeout: float) -> Ranks:
    if alone and process_group is not None:
        raise Invalid("give process_group or alone=True, not both")
    group = default_group() if process_group is None else process_group
    return this_process(timeout) if alone or group is None else ranks_of(group, timeout)


def _close_all() -> None:
    # A daemon thread or a forgotten store must not be torn down under a running save. A rank that
    # ends by an exception does not wait for the others, who know nothing of it.
    failed = getattr(sys, "last_value", None) is not None
    for store in list(_open_stores):
        if store._pid == os.getpid():
            try:
                store._abandon() if failed else store.close()
            except Exception as error:
                warnings.warn(f"while {store!r} was closed at exit: {error}", RuntimeWarning)


atexit.register(_close_all)
