"""The store, and `cairn.open`, which returns it."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from cairn import _cairn, _copies
from cairn._base.addresses import absolute_address, best_texts, step_number
from cairn._base.closing import Closing
from cairn._base.open_options import GivenCredentials, OpenOptions, credentials_function
from cairn._base.patterns import Patterns, clean_prefix, pattern_list
from cairn._base.watched import watched
from cairn._load.contents import contents_of, conversion_of, damaged_keys, without_damage
from cairn._load.in_place import load
from cairn._load.load import LoadOptions
from cairn._load.pull import pull, wait
from cairn._load.read import Reader
from cairn._opened.handle import SaveHandle
from cairn._opened.opened import Opened
from cairn._save.options import SaveOptions, record_pairs
from cairn._save.save import save, save_async
from cairn._tensors.contents import key_info, leaf_at
from cairn._tensors.subclasses import Rebuilder, rebuilt_flat
from cairn.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from cairn import reports
    from cairn._base.progress import Progress
    from cairn._load.conversions import Rename
    from cairn._load.slices import Range
    from cairn._mirror.options import Mirrors
    from cairn._save.tuning import SaveTuning
    from cairn._save.writer import Writer

_open_stores: weakref.WeakValueDictionary[int, Store] = weakref.WeakValueDictionary()
"""By id. Not a WeakSet, which cannot be copied while another thread opens a store."""

_reopening = threading.Lock()
"""Of a forked child, whose threads may use a store at the same time."""


class Store(Closing):
    """Checkpoints in one place: steps, each an immutable map from FQN to tensor or plain value.

    Created by :func:`cairn.open`. The store is a context manager, which closes it.

    Threads: many threads may call methods at the same time. The methods run without the interpreter
    lock, and Ctrl-C ends them. In a multi-rank store, only one thread at a time may make the calls
    that all ranks make.

    Processes: a store that is open for reading can be pickled, for workers that are spawned, and
    opens itself again in a forked child. It is then open in that process alone: it has rank 0 of 1,
    and neither observers nor progress. A store that is open for writing refuses both.

    Progress: the argument ``progress`` of a method is as in :func:`cairn.open`, for this call.

    Errors: ``NotFound``: a step does not exist. ``Corrupt``: bytes that are read are not those that
    were written. ``Conflict``: another process has taken over the store, or a step was deleted
    while a call that changes the store used it. ``Invalid``: an argument is not valid; or a call
    that changes the store, which was opened for reading. ``Unavailable``: an I/O error; a rank
    failed, died, or did not respond in time; ``progress`` has returned False. A method states what
    it raises in addition, and what it leaves behind.

    What a state is
        Nested ``dict``, ``OrderedDict``, ``Counter``, ``list``, ``tuple`` and ``torch.Size`` with
        keys of type ``str``, ``int``, ``float``, ``bool`` or ``None``. Leaves are torch tensors of
        every dtype except the quantized ones, numpy arrays and scalars of numbers and bools,
        objects that support DLPack (they are loaded as torch tensors), and ``None``, ``bool``,
        ``int``, ``float``, ``complex``, ``str``, ``bytes`` and ``io.BytesIO`` (read as ``bytes``).
        The FQN of a leaf is its keys joined by ``.``; where two would be equal, keys are escaped
        (docs/format/keys.md). Tensor subclasses with ``__tensor_flatten__`` are saved as their
        inner tensors (docs/integrations/torchao.md).
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
        self._opened = Opened(address, mode, process_group, options)
        _open_stores[id(self)] = self

    @property
    def opened(self) -> Opened:
        """For the packages of Cairn: the parts of the store, which a forked reader opens again."""
        opened = self._opened
        if opened.pid != os.getpid() and opened.mode == "r" and not opened.is_closed:
            with _reopening:
                if self._opened is opened:
                    address, options = opened.for_other_process()
                    self._opened = Opened(address, "r", None, options)
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        address, options = self._opened.for_other_process()
        options.check_picklable()
        return Store, (address, "r", None, options)

    @property
    def address(self) -> str:
        """The address of the store. Paths are absolute."""
        return self.opened.address

    @property
    def rank(self) -> int:
        """Rank of this process among those that opened the store together; 0 for one process."""
        return self.opened.ranks.rank

    @property
    def world_size(self) -> int:
        """Number of processes that opened the store together; 1 for one process."""
        return self.opened.ranks.world_size

    @property
    def timeout(self) -> float:
        """Seconds that ranks wait for each other in any call."""
        return self.opened.ranks.timeout

    @property
    def transport(self) -> str:
        """How ``load(read_once=True)`` forwards tensors on devices, and why: over NCCL, from device
        to device, or through host memory. The first such load makes the choice, which is the same
        on all ranks. The environment variable ``CAIRN_NCCL`` overrides it
        (docs/communicators.md)."""
        return self.opened.ranks.transport

    @watched("saving", "save")
    def save(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        keys: Patterns = None,
        prefix: str = "",
        allow_pickle: bool = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        mirror: Mirrors | None = None,
        tuning: SaveTuning | None = None,
        progress: Progress | None = None,
    ) -> reports.SaveReport:
        """Writes ``state`` as ``step``. When it returns, the step is complete and durable.

        Tensors must not change until then; if a thread changes one, the save fails with ``Invalid``
        or stores old and new values. CUDA tensors are read after the work on their current stream,
        others that are not in host memory from a copy. Each rank passes and reports its own part.

        Args:
            step: number of the step, 0 to 2**64 - 1.
            state: nested containers of tensors and plain values (see the class).
            overwrite: replaces the step atomically if it exists.
            keys: patterns (:meth:`read`) of keys to save; ``"!model.encoder"`` excludes that part.
            prefix: is prepended to each key: ``"model.encoder"`` for a submodule.
            allow_pickle: pickles leaves of other types.
            metrics, tags, note: of rank 0, recorded with the step (:meth:`step_info`, :meth:`tag`).
            mirror: stores to which a thread of rank 0 copies the step (:class:`cairn.Mirror`).
            tuning: how unchanged chunks are found and new ones stored (:class:`cairn.SaveTuning`).
            progress: as in :func:`cairn.open`, for this call.

        Raises, and leaves the store unchanged:
            Conflict: the step exists.
            Invalid: something cannot be saved (``key``), or ranks disagree.
            Unavailable: no space.
        """
        options = SaveOptions(overwrite, keys, prefix, allow_pickle, metrics, tags, note, tuning)
        return save(self.opened, step, state, options, mirror)

    @watched("saving", "save", in_background=True)
    def save_async(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        keys: Patterns = None,
        prefix: str = "",
        allow_pickle: bool = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        mirror: Mirrors | None = None,
        tuning: SaveTuning | None = None,
        progress: Progress | None = None,
    ) -> SaveHandle:
        """Copies ``state`` into staging memory and writes it in the background.

        The step contains the current state; the caller may change it after
        :meth:`SaveHandle.wait_staged`. The staging memory is as large as the tensors in host memory
        and is reused by the next save. Changed parts of tensors on CUDA devices are copied in the
        background, and the tensors are kept alive until then. Tensors on other devices get host
        copies, which live as long as their storages. A save waits until the save before it has
        ended; so do closing the store and leaving Python. The arguments are those of :meth:`save`;
        ``progress`` also applies to the waits of the handle, and errors that occur later are raised
        by :meth:`SaveHandle.result`.
        """
        options = SaveOptions(overwrite, keys, prefix, allow_pickle, metrics, tags, note, tuning)
        return save_async(self.opened, step, state, options, mirror, progress or False)

    def writer(
        self,
        step: int,
        *,
        overwrite: bool = False,
        allow_pickle: bool = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        mirror: Mirrors | None = None,
        tuning: SaveTuning | None = None,
        progress: Progress | None = None,
    ) -> Writer:
        """Saves a state tensor by tensor, which may be larger than memory (docs/streaming.md)::

            with store.writer(400) as writer:
                writer.add("model.wte.weight", tensor)
                writer.add("epoch", 3)

        Each tensor is written when it is added, and nothing of it is kept. At the end of the block
        the step is committed, and exists from then on. If the block raises, the step does not exist
        and what was written is removed. Other saves of this store fail in the meantime, and reads
        do not see the step. The arguments are those of :meth:`save`; of ``tuning``,
        ``share_equal`` and ``unchanged`` have no meaning here. In a multi-rank store all ranks
        enter and leave the block together (:class:`cairn._save.writer.Writer`, which describes
        ``progress``).

        Raises, when the block is entered:
            Conflict: the step exists.
            Invalid: another writer is open, or ranks disagree.
        """
        from cairn._save.writer import Writer

        options = SaveOptions(overwrite, None, "", allow_pickle, metrics, tags, note, tuning)
        shown = self.opened.progress if progress is None else progress
        mirrors = self.opened.checked_mirrors(mirror)
        return Writer(self.opened, step_number(step), options, mirrors, shown)

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
        strip_wrappers: bool = False,
        progress: Progress | None = None,
    ) -> reports.LoadReport:
        """Fills ``state`` in place from ``step`` (by default the latest), leaf by leaf by FQN.

        Tensors and arrays keep their memory, strides and device; dtype and shape must match the
        step, except in objects. In a DTensor or ShardedTensor, this rank's part is filled, whatever
        mesh saved the step. Meta tensors and meta DTensors are replaced in their container by new
        tensors with memory: Parameters remain Parameters, tied ones remain tied, and
        ``model.load_state_dict(state, assign=True)`` puts them into the model. Plain values are
        replaced in their containers, and tuples that contain them are rebuilt. All of this is
        checked on all ranks before anything changes.

        Objects with ``load_state_dict`` receive what the step contains, such as an optimizer that
        has not made a step, and their tensors of other dtypes or shapes are replaced; modules
        receive their keys, on the meta device with ``assign=True``. docs/torch.md states which
        parts of objects ranks receive, and which optimizers are refused.
        ``optimizer.state_dict()`` is partly a copy: pass the optimizer itself, or pass the filled
        state to ``optimizer.load_state_dict``.

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
                errors. Of an object, what it lacks is left out with the complete part that is
                damaged. Every rank first reads all keys, to find them (:meth:`damaged_keys`).
            rename: how keys of the step become keys of the state, as for :meth:`read`; equal on all
                ranks. Reports, errors and ``keys`` use the new names.
            cast: casts floating-point tensors to the dtypes of the state while they are read.
            strip_wrappers: names match without ``_orig_mod.``, ``module.``,
                ``_fsdp_wrapped_module.`` and ``_checkpoint_wrapped_module.``, on both sides,
                wherever these are; ``keys`` select names without them.

        Raises:
            NotFound: (strict) the step lacks keys of the state; or no key of the state is loaded.
            Invalid: (strict) the state lacks keys of the step; dtypes, shapes or kinds differ.
            Corrupt, Unavailable: the state is partly filled.
        """
        conversion = conversion_of(rename, None, cast, takes_stored=skip_damaged)
        options = LoadOptions(
            strict=strict,
            patterns=pattern_list(keys),
            prefix=clean_prefix(prefix),
            ignore_frozen=ignore_frozen,
            allow_pickle=allow_pickle,
            device=device,
            read_once=read_once,
            skip_damaged=skip_damaged,
            strip_wrappers=strip_wrappers,
            conversion=conversion,
        )
        return load(self.opened, state, step, options)

    @watched("reading")
    def read(
        self,
        patterns: Patterns = None,
        step: int | str | None = None,
        *,
        device: Any = None,
        mmap: bool = False,
        flat: bool = False,
        verify: bool | Literal["lazy"] = True,
        allow_pickle: bool = False,
        skip_damaged: bool = False,
        rename: Rename = None,
        dtype: Any = None,
        progress: Progress | None = None,
    ) -> Any:
        """Reads ``step`` (by default the latest), or the part that ``patterns`` select.

        A step is given by its number or by a tag (:meth:`Store.tag`).

        Args:
            patterns: one or more patterns. A pattern without wildcards names a key and all keys
                below it: ``model.layers.1`` matches ``model.layers.1.attn.wq``, but not
                ``model.layers.10.attn.wq``. ``*`` matches inside one path element, ``**`` across
                elements, ``?`` one character, ``[a-c]`` one of a set. A leading ``!`` excludes.
                ``[[]``, ``[*]`` and ``[?]``, which ``glob.escape`` writes, are these characters
                themselves, and so is ``[!]`` at the beginning.
            device: where torch tensors are placed; by default host memory.
            mmap: tensors are views of the memory-mapped file where their bytes are contiguous in
                it, without a copy. Such numpy arrays are read-only. Torch tensors cannot be: a
                write to one stays in this process, in a private copy of the page. The views remain
                valid for their lifetime, even if the step is deleted or the store is closed.
            flat: returns a dict from FQN to leaf instead of the nested state.
            verify: when mapped bytes are checked: ``True`` before the call returns, ``"lazy"`` in
                the background, and ``False`` never, so that only the pages that are used are read.
                Bytes that are not mapped are always checked. If the background check finds damage,
                it issues a warning, and the next call of the store raises Corrupt;
                :meth:`wait_verified` waits for it.
            allow_pickle: unpickles leaves that were pickled.
            skip_damaged: leaves out :meth:`damaged_keys`, with a warning. Reads everything twice.
            rename: expressions, each with what replaces its first match in a key, or a list of
                rules (docs/conversion.md). The patterns select new names.
            dtype: that of all floating-point tensors, which are cast while they are read.

        Memory of new torch tensors: a tensor of 1 MiB or more has separate pages; smaller ones
        share arenas of at most 32 MiB, and an arena is freed with the last tensor in it. To keep a
        few small tensors of a large state for a long time, ``clone()`` them. The storage of a
        tensor has exactly its size and cannot be resized.

        Returns:
            A new state, nested as it was saved. A list or tuple of which only a part is selected
            becomes a dict from index to element, and a tensor subclass a dict of inner tensors.

        Raises:
            NotFound: no key matches.
            Invalid: a malformed pattern, a pickle that is not allowed, or rules that do not fit.
        """
        selected = pattern_list(patterns)
        native, number = self.opened.place_of(step)
        conversion = conversion_of(rename, dtype, takes_stored=mmap or skip_damaged)
        contents = contents_of(native, number, selected, conversion)
        if skip_damaged:
            contents, skipped = without_damage(native, contents, selected)
            for error in skipped.values():
                warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=3)
        reader = Reader(native, contents, device=device, mmap=mmap, verify=verify)
        leaves = reader.read(allow_pickle)
        self.opened.native.continue_from(contents.info)
        for check in reader.checks:
            self.opened.map_checks.start(check)
        rebuild = Rebuilder(contents.step, is_part=bool(selected) or skip_damaged)
        if flat:
            state = dict(zip(contents.fqns(), leaves))
            return rebuilt_flat(state, rebuild) if contents.has_subclasses else state
        return contents.build(leaves, rebuild)

    def read_slice(
        self, fqn: str, ranges: Sequence[Range], step: int | str | None = None, *, out: Any = None
    ) -> Any:
        """Reads a box of one tensor, and only the chunks that intersect it.

        Args:
            fqn: the name of the tensor, which is not a pattern.
            ranges: for each dimension, outermost first, ``(begin, end)`` in elements, a slice
                without step, or an index, which drops the dimension. Dimensions that are left out
                are read completely.
            out: a tensor or array of the box's shape and the stored dtype to read into.

        Returns:
            ``out``, or a new tensor (a numpy array, if the leaf was one).

        Raises:
            NotFound: the key does not exist.
            Invalid: the key is a plain value, the box exceeds the shape, or ``out`` does not fit.
        """
        from cairn._load.slices import read_slices

        return read_slices(self.opened, {fqn: ranges}, step, out)[fqn]

    def read_slices(
        self, boxes: Mapping[str, Sequence[Range]], step: int | str | None = None
    ) -> dict[str, Any]:
        """Reads boxes of many tensors in one call, such as one rank's part of every matrix.

        This is much faster than :meth:`read_slice` for each: the keys are listed once, and the
        reads of all boxes are sorted, merged and submitted together.

        Args:
            boxes: the ranges of each tensor by name, as for :meth:`read_slice`.

        Returns:
            New tensors (numpy arrays, where the leaf was one) by name, in the order of ``boxes``.

        Raises NotFound and Invalid, as :meth:`read_slice`, before anything is read.
        """
        from cairn._load.slices import read_slices

        return read_slices(self.opened, boxes, step)

    def stream(
        self,
        step: int | str | None = None,
        patterns: Patterns = None,
        *,
        device: Any = None,
        read_ahead_bytes: int = 256 << 20,
    ) -> Iterator[tuple[str, Any]]:
        """The tensors of ``step`` (by default the latest), one after the other, in the order in
        which their bytes are in the files, for engines that load tensor by tensor::

            for fqn, tensor in store.stream(device="cuda"):
                engine.load(fqn, tensor)

        While the caller works with a tensor, a thread reads the next ones (docs/streaming.md). All
        bytes are verified. Each tensor is the caller's: nothing else refers to its memory. Plain
        values are left out (:meth:`read` returns them). Tensors that shared memory when they were
        saved each have separate memory here. Each rank makes the call alone. The iteration may be
        left early, which waits for the read that is running.

        Args:
            patterns: as for :meth:`read`.
            device: where torch tensors are placed; by default host memory. Numpy arrays remain so.
            read_ahead_bytes: limit of the memory of tensors that the caller does not have yet. A
                tensor that is larger is read alone.

        Returns:
            An iterator of pairs of name and tensor (or numpy array, if the leaf was one).

        Raises:
            NotFound: no key matches; later: the step was deleted, and its grace period has ended.
            Invalid: a malformed pattern; later: the store was closed.
            Corrupt: when the iteration arrives at a damaged tensor, which ``key`` names. Those
                before it were complete.
        """
        from cairn._load.stream import stream

        return stream(self.opened, step, patterns, device, read_ahead_bytes)

    def wait_verified(self, timeout: float | None = None) -> bool:
        """Waits until all tensors of ``read(mmap=True, verify="lazy")`` were checked, at most for
        ``timeout`` seconds, and returns whether they were. Closing the store waits, too.

        Raises Corrupt if one of them is damaged, or what else has prevented its check.
        """
        return self.opened.map_checks.wait(timeout)

    def steps(self) -> list[int]:
        """The step numbers, ascending, including those of fallback stores. A store that is open for
        reading sees the steps that a concurrent writer commits."""
        return self.opened.tiers.steps()

    def latest(self) -> int | None:
        """The latest step, which is the default of all methods: the one that was saved last
        (docs/versions.md). It is not the highest if a run has gone back to a lower step. None if
        there is no step."""
        return self.opened.tiers.latest()

    def keys(
        self, step: int | str | None = None, pattern: Patterns = None
    ) -> dict[str, reports.KeyInfo]:
        """What ``step`` (by default the latest) contains, by FQN, in the order of the state.

        ``pattern`` is as for :meth:`read`. No tensor is read. Returns an empty dict if no key
        matches.
        """
        contents = self.opened.contents(step, pattern_list(pattern))
        leaves = [leaf_at(contents, i) for i in range(len(contents))]
        return {leaf.fqn: key_info(leaf) for leaf in leaves}

    def statistics(
        self, step: int | str | None = None, pattern: Patterns = None
    ) -> dict[str, reports.TensorStatistics]:
        """What the save of ``step`` (by default the latest) recorded about the values of its
        tensors, by FQN. No tensor is read.

        ``pattern`` is as for :meth:`read`. Tensors that have no statistics are left out: those of
        saves without ``SaveTuning(statistics=True)`` and of device memory, and tensors that share
        the bytes of others.
        """
        native, number = self.opened.place_of(step)
        return native.statistics(native.contents(number, pattern_list(pattern)))

    def diff(self, a: int | str, b: int | str, pattern: Patterns = None) -> reports.Diff:
        """How step ``b`` differs from step ``a``, by digests. No tensor is read. With fallback
        stores, raises NotFound if no store has both."""
        a, b = (step_number(self.opened.number(step)) for step in (a, b))
        native = self.opened.tiers.find_both(a, b) or self.opened.native
        return native.compare(a, b, pattern_list(pattern))

    @watched("verifying")
    def damaged_keys(
        self,
        step: int | str | None = None,
        pattern: Patterns = None,
        *,
        progress: Progress | None = None,
    ) -> dict[str, Corrupt]:
        """The tensors, and values of more than 4 KiB, of ``step`` (by default the latest) that
        cannot be read because the store is damaged: the error of each, by FQN. Tensors that share
        memory with a damaged one count as damaged. Reads what ``pattern`` selects (see
        :meth:`read`), and keeps nothing. Raises Corrupt if the records of the step are damaged.
        """
        native, number = self.opened.place_of(step)
        return damaged_keys(native, native.contents(number, pattern_list(pattern)))

    def scrub(self, *, max_rate: int = 64 << 20, every: float = 86_400) -> _cairn.Scrub:
        """Verifies the complete store in the background, again and again, as ``kv-dump verify``
        does. It has a separate handle, so it sees new steps, and may outlive this store.

        Args:
            max_rate: bytes of payload per second on average; 0 for no limit.
            every: seconds from the begin of a pass to that of the next. A pass that takes longer is
                followed by the next one at once.
        """
        if max_rate < 0 or not 0 <= every < 1e9:
            raise Invalid(f"max_rate={max_rate}, every={every}: neither may be negative")
        return self.opened.native.scrub(max_rate, every)

    def wait(self, after: int | None = None, timeout: float = 600.0) -> int | None:
        """Waits until the latest step is greater than ``after`` (for any step, if that is None), or
        is another one while ``after`` exists, because the run has gone back (docs/versions.md).

        Returns the latest step, or None if there is none after ``timeout`` seconds. A directory
        that is written on the same machine, and a Ceph pool, notify the waiting process of a new
        step; other stores are asked once a second. In a multi-rank store each rank waits alone.
        """
        return wait(self.opened, after, timeout)

    @watched("updating", "pull")
    def pull(
        self,
        state: Any,
        *,
        since: int,
        step: int | str | None = None,
        strict: bool = True,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        strip_wrappers: bool = False,
        progress: Progress | None = None,
    ) -> reports.PullReport:
        """Updates a ``state`` that contains the step ``since`` to ``step`` (by default the latest).

        Only what differs between the two steps is read, and written to the memory of the state.
        Contiguous tensors in host memory are first compared with ``since``, all of them before the
        first is changed; of these, the 64 KiB pages that differ are read. Other tensors (strided
        ones, on devices, aliases in the step, parts of a DTensor) are not compared, and read
        completely if they differ.
        If both steps are the same, nothing is compared or read, unless the state has tensors on the
        meta device, which are created as by :meth:`Store.load`. The other arguments, the rules for
        containers, objects with ``load_state_dict`` and several ranks are those of
        :meth:`Store.load`.

        If the call is interrupted or fails while it reads, tensors may contain pages of both steps.
        Then load the state completely; another pull refuses it.

        Raises:
            NotFound: no key matches ``keys``; or (strict) the step lacks keys of the state.
            Invalid: a tensor does not contain the bytes of ``since`` (``key`` names it), and this
                process has changed nothing; or as for :meth:`Store.load`.
        """
        options = LoadOptions(
            strict=strict,
            patterns=pattern_list(keys),
            prefix=clean_prefix(prefix),
            ignore_frozen=ignore_frozen,
            allow_pickle=allow_pickle,
            strip_wrappers=strip_wrappers,
        )
        return pull(self.opened, state, since, step, options)

    @watched("checking")
    def check(
        self,
        state: Any,
        step: int | str | None = None,
        *,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        strip_wrappers: bool = False,
        progress: Progress | None = None,
    ) -> reports.CheckReport:
        """Compares a ``state`` in memory with ``step`` (by default the latest) and changes neither:
        after a load or a pull, or before an engine serves a model (docs/live-updates.md).

        The memory is digested, each page of 64 KiB, and compared with the digests of the step; its
        payload is not read. A page of a sharded tensor that no rank has completely is the exception
        (see :attr:`cairn.CheckReport.bytes_read`): ranks on the mesh that saved the step have none.
        Tensors on CUDA devices are digested there. The other arguments, and the state, are as for
        :meth:`Store.load`. In a multi-rank store all ranks call it, each with what it holds, and
        get the same report, which names the ranks.

        Whatever differs is in the report, whose ``equal`` is true if the state is the step. Raises
        NotFound if the step has no key of the state, or no key matches.
        """
        from cairn._check import check

        options = LoadOptions(
            patterns=pattern_list(keys),
            prefix=clean_prefix(prefix),
            ignore_frozen=ignore_frozen,
            allow_pickle=allow_pickle,
            strip_wrappers=strip_wrappers,
        )
        return check(self.opened, state, step, options)

    @watched("checking")
    def check_state(
        self,
        state: Any,
        *,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        progress: Progress | None = None,
    ) -> reports.StateReport:
        """What a save of ``state`` would do, before a training starts: all leaves that it would
        refuse, the bytes that a first and the next save write, the time for them on this disk, and
        keys that only some ranks have. Writes no step. In a directory that is open for writing, it
        measures the disk with 64 MiB in a file without a name, which no crash leaves behind.

        The arguments are those of :meth:`save`. In a multi-rank store all ranks call it, and get
        the same report.
        """
        from cairn._check import check_state

        options = LoadOptions(
            True, pattern_list(keys), clean_prefix(prefix), ignore_frozen, allow_pickle
        )
        return check_state(self.opened, state, options)

    def tag(self, step: int, name: str) -> None:
        """Names ``step``, so that ``load(step=name)``, ``read(step=name)`` and ``STORE@name`` in
        programs address it, and so that it is never pruned. Another step with this tag loses it.
        In a multi-rank store rank 0 calls this alone.

        ``name`` has 1 to 64 letters, digits, ``.``, ``_`` or ``-``, and not only digits.
        """
        self.opened.native.change_tag(name, step_number(step))

    def untag(self, name: str) -> None:
        """Removes a tag; the step remains. Raises NotFound if no step has it."""
        self.opened.native.change_tag(name, None)

    def tags(self) -> dict[str, int]:
        """The step of each tag."""
        return self.opened.native.tags()

    def step_info(self, step: int | str) -> reports.StepInfo:
        """What is recorded about ``step``, which is a number or a tag."""
        return self.opened.native.step_info(self.opened.number(step))

    def records(self, step: int | str) -> list[str]:
        """The names of the records that an application has stored with ``step``."""
        return self.opened.native.records(self.opened.number(step))

    def record(self, step: int | str, name: str) -> bytes:
        """The bytes that an application has stored with ``step`` under ``name``, in addition to the
        state: with the save (:attr:`cairn.SaveTuning.records`), or later with :meth:`edit`. A name
        has 1 to 255 bytes of UTF-8, and a record at most 16 MiB. Raises NotFound."""
        return self.opened.native.record(self.opened.number(step), name)

    @watched("", "delete")
    def delete(self, *steps: int) -> reports.DeleteReport:
        """Deletes complete steps in one commit. Bytes that other steps refer to remain. The files
        of the others are removed after the grace period (see :func:`cairn.open`).

        Raises NotFound, with nothing deleted, if one of the steps does not exist.
        """
        return self._delete(lambda: steps)

    @watched("", "prune")
    def prune(
        self,
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: str | Iterable[str] = (),
    ) -> reports.DeleteReport:
        """Deletes all steps except the last ``keep_last``, the multiples of ``keep_every``, the
        best by a metric, those with tags, and those that wait for their copy to a mirror. Without
        arguments, the policy of the store applies (:meth:`set_policy`).

        Args:
            keep_best: ``"val_loss:3"`` keeps the 3 steps with the lowest values of this metric
                (see :meth:`save`), ``"accuracy:3:max"`` those with the highest; or several of
                these. Steps without the metric are not kept by it.

        Raises Invalid if none is given and the store has no policy, and NotFound if ``keep_best``
        alone is given and no step has such a metric.
        """
        best = best_texts(keep_best)
        if keep_last == keep_every == len(best) == 0 and (kept := self.policy()):
            keep_last, keep_every, best = kept.keep_last, kept.keep_every, list(kept.keep_best)
        if keep_last < 0 or keep_every < 0 or keep_last + keep_every + len(best) == 0:
            raise Invalid(
                "prune: state keep_last, keep_every or keep_best, none of them negative; the store "
                "has no policy"
            )

        def doomed() -> list[int]:
            pinned = self.opened.pinned()
            steps = self.opened.native.steps_to_delete(keep_last, keep_every, best, None)
            return [step for step in steps if step not in pinned]

        return self._delete(doomed)

    def _delete(self, choose: Callable[[], Iterable[int]]) -> reports.DeleteReport:
        """Deletes the steps that `choose` returns on rank 0. Collective."""
        from cairn.reports import DeleteReport

        ranks, native = self.opened.ranks, self.opened.native
        ranks.begin("delete")

        def work() -> tuple[Any, ...] | None:
            self.opened.wait_for_last_save()
            if ranks.rank != 0:
                return None
            numbers = tuple(step_number(step) for step in choose())
            return numbers, *native.delete(numbers, False)

        numbers, *space = ranks.exchange_values(work)[0]
        return DeleteReport(tuple(numbers), *space)

    def set_policy(
        self,
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: str | Iterable[str] = (),
    ) -> None:
        """Sets which steps remain, for all processes that save to this store from now on: each save
        deletes, in its commit, the steps that :meth:`prune` with these arguments would delete,
        except newer ones. Without arguments, saves delete nothing any more.

        A copy of a step to this store is not such a save. In a multi-rank store rank 0 calls it
        alone.
        """
        if keep_last < 0 or keep_every < 0:
            raise Invalid("set_policy: keep_last and keep_every must not be negative")
        self.opened.wait_for_last_save()
        self.opened.native.set_retention(keep_last, keep_every, best_texts(keep_best))

    def policy(self) -> reports.RetentionPolicy | None:
        """The policy that saves apply (:meth:`set_policy`), or None."""
        from cairn.reports import RetentionPolicy

        kept = self.opened.native.retention()
        return RetentionPolicy(*kept) if any(kept) else None

    def set_compression(self, compress: bool) -> None:
        """Sets whether saves to this store compress what they write, unless they state otherwise:
        ``save``, ``save_async``, ``dcp.save``, imports and those of other processes from now on.
        What is stored does not change; :meth:`compact` compresses it. In a multi-rank store rank 0
        calls it alone.
        """
        self.opened.wait_for_last_save()
        self.opened.native.set_compression(compress)

    def compression(self) -> bool:
        """Whether saves compress by default (:meth:`set_compression`)."""
        return self.opened.native.compresses_saves()

    @watched("compacting", "compact")
    def compact(
        self,
        *,
        max_dead: float = 0.15,
        fold: bool = False,
        compress: bool = False,
        max_rate: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> reports.CompactReport:
        """Rewrites segments of which steps use only a part, and joins small segments. No step
        changes. The old segments are removed after the grace period (see :func:`cairn.open`).

        Saves, deletes and readers continue, so a thread of a training job may call this.
        In a multi-rank store rank 0 calls it alone. Ctrl-C ends it; what was committed remains.

        Args:
            max_dead: a segment is rewritten if steps do not use more than this part of it.
            fold: also writes chunks without deltas if no other step uses what their deltas are
                relative to, so that they are loaded faster.
            compress: also compresses chunks (docs/compression.md), for archives. Loads of them
                take longer.
            max_rate: limit in bytes of payload per second; by default there is none.
            dry_run: only reports what would be rewritten.

        Raises Invalid if the store is being compacted.
        """
        if max_rate is not None and operator.index(max_rate) < 1:
            raise Invalid(f"max_rate={max_rate}: must be 1 or more")
        return self.opened.native.compact(
            max_dead=max_dead, fold=fold, compress=compress, max_rate=max_rate, dry_run=dry_run
        )

    @watched("moving records", unit="records")
    def edit(
        self,
        step: int,
        *,
        into: int,
        drop: Patterns = None,
        rename: Mapping[str, str] | None = None,
        graft_from: int | None = None,
        graft: Patterns = None,
        under: str = "",
        records: Mapping[str, bytes | None] | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Makes the step ``into`` of the records of ``step``, with other keys. No payload is read
        or written: the new step refers to the bytes of its sources, which may be deleted
        afterwards. Without changes, it is a copy of ``step`` under another number.

        The changes are made in the order drop, rename, graft, and are committed together. Tensors
        that share memory still do. In a multi-rank store rank 0 calls it alone. See
        docs/editing-steps.md.

        Args:
            drop: patterns (see :meth:`read`) of keys that the new step does not have.
            rename: new names by old ones. An old name is a key, or the beginning of keys before a
                ``.``: ``{"model": "net"}`` renames ``model.wte`` to ``net.wte``.
            graft_from: another step, whose keys are added and replace equal ones.
            graft: patterns of the keys to take from it; by default all.
            under: the key below which they are put, as it is named in the step; by default they
                keep their names.
            records: records to add, replace or (``None``) remove (:meth:`record`). All others are
                those of ``step``.
            overwrite: replaces the step ``into`` atomically if it exists.
            progress: a function is called with numbers of records instead of bytes.

        Raises:
            NotFound: a pattern or name selects no key, or a record that is to be removed does not
                exist.
            Conflict: the step ``into`` exists.
            Invalid: two keys would be equal, or a list would have gaps (``key`` names it); a record
                is longer than 16 MiB or has a wrong name.
        """
        if graft_from is None and (graft is not None or under):
            raise Invalid("graft= and under= require graft_from=, the step that has the keys")
        self.opened.begin_change()
        self.opened.native.edit(
            step_number(step),
            into=step_number(into),
            drop=pattern_list(drop),
            rename=list(dict(rename or {}).items()),
            graft_from=None if graft_from is None else step_number(graft_from),
            graft=pattern_list(graft),
            under=under if "\\" in under else clean_prefix(under),
            records=record_pairs(records or {}, may_remove=True),
            overwrite=overwrite,
        )

    @watched("merging", "merge")
    def merge(
        self,
        steps: Iterable[int],
        *,
        into: int,
        weights: Iterable[float] | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> reports.MergeReport:
        """Makes the step ``into`` of weighted means of the floating-point tensors of ``steps``.
        All else is that of the last of them: other tensors, plain values, structure and chunks.

        The steps have the same keys, dtypes and shapes; they may be sharded differently. The mean
        is computed in float32 (float64 for float64) and rounded once, chunk by chunk in bounded
        memory. Chunks that are equal in all steps are not written again. In a multi-rank store
        rank 0 calls it alone. Ctrl-C ends it. See docs/merging.md.

        Args:
            weights: one per step, divided by their sum; by default they are equal.
            overwrite: replaces the step ``into`` atomically if it exists, which may be one of
                ``steps``.

        Raises:
            Conflict: the step ``into`` exists.
            Invalid: fewer than two steps; their keys, dtypes, shapes or shared memory differ
                (``key`` names the first); they differ in a tensor of 8-bit or 4-bit floats; the
                weights have no positive sum.
        """
        numbers = [step_number(step) for step in steps]
        factors = None if weights is None else [float(weight) for weight in weights]
        if factors == []:
            raise Invalid("weights is empty; leave it out for equal weights")
        self.opened.begin_change()
        return self.opened.native.merge(
            numbers, into=step_number(into), weights=factors or [], overwrite=overwrite
        )

    def fork(
        self,
        step: int,
        *,
        into: int | None = None,
        to: Any = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Makes ``step`` the start of another line: a copy under another number, or in another
        store. In this store no payload is read or written (as by :meth:`edit` without changes). In
        another store, only what it lacks is transferred, and every page is verified before it is
        written. ``step`` may be deleted afterwards. Tags are not copied.

        In a multi-rank store rank 0 calls it alone.

        Args:
            into: the number of the copy; in another store by default that of ``step``.
            to: the other store, open with mode ``"a"``, or its address; it is created if absent.
            overwrite: replaces the step ``into`` atomically if it exists.
            progress: of the copy to another store. A function may be called on other threads.

        Raises:
            Conflict: the step ``into`` exists, in another store with other contents; or another
                process writes to the store that gets the copy.
            Invalid: neither ``into`` nor ``to`` is given.
        """
        number = step_number(step)
        if to is None or to is self:
            if into is None:
                raise Invalid("fork: give into= (a number), or to= (another store), or both")
            return self.edit(number, into=into, overwrite=overwrite)
        if not isinstance(to, Store):
            with open(to, mode="a", alone=True) as target:
                return self.fork(
                    number, into=into, to=target, overwrite=overwrite, progress=progress
                )
        shown = self.opened.progress if progress is None else progress
        return _copies.fork(self.opened, to.opened, number, into, overwrite, shown)

    @watched("copying to mirrors")
    def wait_mirrored(
        self, timeout: float | None = None, *, progress: Progress | None = None
    ) -> None:
        """Waits until no step waits for its copy to a mirror. Returns at once on ranks other than
        0. ``progress`` is as in :func:`cairn.open`, for the copies that run.

        Raises TimeoutError after ``timeout`` seconds, and the error of the newest step if it was
        not copied; Unavailable if ``progress`` has returned False, and the copies continue.
        """
        self.opened.mirrors.wait_for_all(timeout)

    def mirror_status(self) -> list[reports.MirrorStatus]:
        """The state of each mirror of this store; an empty list on ranks other than 0."""
        return self.opened.mirrors.status()

    def observe(self, observer: Callable[[reports.StoreEvent], object]) -> None:
        """Calls ``observer`` with a :class:`cairn.StoreEvent` after each save, load, pull, delete,
        prune, compact and merge of this store object, whether it succeeded or failed, and after
        each copy of a step to a mirror.

        The event of ``save_async`` is reported once the step is durable or the save has failed, by
        a background thread that exists until then; that of a copy by the thread of the mirror,
        before :meth:`wait_mirrored` returns; all others by the thread that made the call, before
        the call returns. Saves are reported in the order in which they ended. Several observers are
        called in the order in which they were added. :meth:`close` waits for the observers. An
        exception in an observer has no effect on the call that it observes: the first one of each
        observer is logged to the logger ``cairn``. On the main thread, ``SystemExit`` and
        ``KeyboardInterrupt`` leave the call after its work is done.

        Each rank observes its own calls, and rank 0 the copies. docs/monitoring.md has
        observers for several libraries.

        Threads: may be called from any thread. Observers may be called by several threads at once.
        """
        self.opened.observe(observer)

    def close(self) -> None:
        """Waits for a running asynchronous save and for background checks, and releases the store.
        May be called again.

        In a multi-rank store each rank waits for the others, at most for the store's timeout. Then
        waits for the copies to mirrors, whose failures are bounded by their timeouts.

        Raises the error of that save, unless its handle has already raised it, of a check, and of
        the copy of the newest step.
        """
        self.opened.close(self.opened.native.close)

    def abandon(self, error: BaseException | None = None) -> None:
        """Closes the store without waiting for the other ranks, and notifies them: after an
        ``error`` on this rank that they may not have. Copies to mirrors are not repeated if they
        fail, and not waited for after Ctrl-C."""
        native = self.opened.native
        if error is not None:
            self.opened.ranks.leave(error)
        release = native.abandon if self.world_size > 1 else native.close
        self.opened.close(release, failed=True, interrupted=isinstance(error, KeyboardInterrupt))

    _close_after = abandon

    def __repr__(self) -> str:
        opened = self._opened
        state = " closed" if opened.is_closed else ""
        return f"<cairn.Store {opened.address!r} mode={opened.mode!r}{state}>"


def open(
    address: str | os.PathLike[str],
    mode: str = "r",
    process_group: ProcessGroup | None = None,
    *,
    alone: bool = False,
    timeout: float = 1800.0,
    arrival: float = 300.0,
    take_over: bool = False,
    grace: float | None = None,
    credentials: GivenCredentials = None,
    fallback: Sequence[str | os.PathLike[str]] = (),
    progress: Progress = False,
) -> Store:
    """Opens a store.

    Under ``torch.distributed`` with more than one rank, the ranks of the process group open the
    store together: each of them calls this function. Every rank then calls ``save``,
    ``save_async``, ``load``, ``delete``, ``prune`` and ``close``, in the same order, and an error
    on one rank is raised on all of them. Each rank may call the other methods by itself.

    Args:
        address: ``PATH`` or ``file:PATH``, a directory, which all ranks must share;
            ``s3://BUCKET/PREFIX[?endpoint=URL&region=R]``, in an S3-compatible object store; or
            ``rados:POOL/NAMESPACE[?conf=FILE&data_pool=POOL]``, in a Ceph cluster. A relative path
            becomes absolute when it is given; one that begins with ``~`` is refused.
        mode: ``"r"`` reads, and sees the steps that a concurrent writer commits. ``"a"`` reads and
            writes, and creates the store if it does not exist. Only one process, or the ranks of
            one group, may have a store open for writing at a time.
        process_group: the group whose ranks open the store together; by default the default group,
            if there is one. Any backend works: the group is used only to exchange the addresses
            at which the ranks connect.
        alone: this process opens the store by itself, whatever process groups exist. For tools, and
            for a reader on one rank.
        timeout: seconds that ranks wait for each other in any call before the call fails.
        arrival: seconds, at most ``timeout``, that ranks wait for the others to begin the same call
            before it fails with Unavailable, which names the ranks that have not come.
        take_over: becomes the writer even if another process has the store open for writing, for
            example because that process hangs, or ran on a machine that has failed. From then on,
            every save and delete of that process fails with Conflict and changes nothing. In a
            multi-rank store, the value on rank 0 counts.
        grace: seconds for which the files of deleted and overwritten steps remain, so that readers
            can finish what they have begun to read; by default 60. After this time, the next save,
            delete, close or open for writing removes the files, and so does a save to which the
            disk has no more room. With 0, the delete or overwrite itself removes them. In a
            multi-rank store, the value on rank 0 counts.
        credentials: for a store in a bucket, the only source of credentials: a session of boto3 or
            botocore, which knows roles, SSO and web identities, or a function. By default,
            credentials are found in the environment, profiles, container and machine services
            (docs/object-stores.md). The function is called when credentials are needed and after
            the server has rejected the previous ones. It returns a mapping with ``access_key_id``,
            ``secret_access_key`` and optionally ``session_token`` and ``expiry`` (seconds since
            1970).
        fallback: addresses of stores with copies of the steps, from near to far, such as mirrors
            (docs/mirroring.md). ``load`` and the methods that read use the nearest store that has
            the step; by default, the latest one in any store. If different steps have the same
            number, the one that was saved last is used. The stores need not exist; with mode
            ``"r"``, one of them or ``address`` must. Saves and deletes concern ``address`` alone.
        progress: ``True`` shows the progress of calls that take longer than a second, on rank 0 and
            if standard error is a terminal, as a bar of tqdm if it is installed and otherwise as a
            line. A function is called with the bytes that are done and those in all, at most ten
            times per second; if it returns False, the call raises Unavailable.

    Raises:
        NotFound: the store does not exist (``"r"``).
        Conflict: another process has it open for writing (``"a"``); the message contains its host
            and pid, and since when it has been the writer.
        Corrupt: the store is damaged.
        Invalid: the directory is not a store, or has another format; the mode, the address or the
            grace period is not valid; ``take_over`` without mode ``"a"``; this process is not in
            the group, or the ranks see different directories.
        Unavailable: a permission or I/O error; a rank did not connect in time.
    """
    options = OpenOptions(
        alone,
        timeout,
        take_over,
        grace,
        credentials_function(credentials),
        _addresses(fallback),
        progress,
        arrival,
    )
    return Store(address, mode, process_group, options)


def _addresses(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    several = (given,) if isinstance(given, (str, os.PathLike)) else given
    return tuple(absolute_address(one) for one in several)


def _close_all() -> None:
    # The interpreter must not be torn down while a save of a daemon thread or of a forgotten store
    # is running. A rank that ends with an exception does not wait for the others, which do not know
    # about it.
    error = getattr(sys, "last_value", None)
    try:
        for reference in _open_stores.valuerefs():
            store = reference()
            if store is None or store._opened.pid != os.getpid() or store._opened.is_closed:
                continue
            try:
                store.abandon(error) if error is not None else store.close()
            except Exception as second:
                with suppress(RuntimeWarning):  # a filter that raises must not keep others open
                    warnings.warn(f"while {store!r} was closed at exit: {second}", RuntimeWarning)
    finally:
        _cairn.skip_destructors_of_busy_process()


def _renew_lock_in_child() -> None:
    global _reopening  # noqa: PLW0603 - another thread of the parent may hold it
    _reopening = threading.Lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_renew_lock_in_child)
