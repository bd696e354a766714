"""`StepReader`: the calls of a store that read, and that each rank makes alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cairn import _cairn
from cairn._base.patterns import Patterns, exact_patterns, pattern_list, patterns_for
from cairn._base.steps import step_number
from cairn._base.watched import Watched, watched
from cairn._load.damage import damaged_keys, without_damage
from cairn._load.map_checks import MapChecks
from cairn._load.read import Reader
from cairn._load.tiers import Tiers
from cairn._tensors.contents import key_info, leaf_at
from cairn._tensors.subclasses import Rebuilder, rebuilt_flat
from cairn.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn._load.conversions import ConversionOptions, Rename
    from cairn._load.scrub import Scrub
    from cairn._load.slices import Range
    from cairn.reports import Diff, KeyInfo, TensorStatistics

READ_AHEAD_BYTES = 256 << 20


class StepReader(Watched):
    """The calls of :class:`cairn.Store` that read, and that a rank makes without the others.

    Threads: all methods may be called from any thread.
    """

    _native: _cairn.Store
    _tiers: Tiers | None
    """The stores in which a step may be, with this store as the nearest; None if it is the only
    one."""

    _map_checks: MapChecks

    def _place_of(self, step: int | str | None) -> tuple[_cairn.Store, int | None]:
        """The store that has the step, or the latest step, and the argument for its `contents`."""
        self._map_checks.raise_found()
        step = self._number(step)
        found = None if self._tiers is None else self._tiers.find(step)
        if self._tiers is None or found is None:
            return self._native, step  # which raises NotFound
        return self._tiers.native(found.tier) or self._native, found.step

    def _number(self, step: int | str | None) -> int | None:
        """The number of a step that is given by its number or by a tag."""
        if step is None:
            return None
        return self._native.find_tag(step) if isinstance(step, str) else step_number(step)

    def _local_steps(self) -> list[int]:
        """The steps of this store alone."""
        return self._native.steps()

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
            dtype: the dtype of all floating-point tensors, which are cast while they are read.
            progress: as in :func:`cairn.open`, for this call.

        Memory of new torch tensors: a tensor of 1 MiB or more has separate pages; smaller ones
        share arenas of at most 32 MiB, and an arena is freed with the last tensor in it. To keep a
        few small tensors of a large state for a long time, ``clone()`` them. The storage of a
        tensor has exactly its size and cannot be resized.

        Returns:
            A new state, nested as it was saved. A list or tuple of which only a part is selected
            becomes a dict from index to element, and a tensor subclass a dict of inner tensors.

        Raises:
            NotFound: the step does not exist, or no key matches.
            Invalid: a malformed pattern, a pickle that is not allowed, or rules that do not fit.
            Corrupt: the bytes differ from the written bytes.
        """
        selected = pattern_list(patterns)
        native, step = self._place_of(step)
        conversion = conversion_of(rename, dtype, takes_stored=mmap or skip_damaged)
        contents = contents_of(native, step, selected, conversion)
        if skip_damaged:
            contents, _, skipped = without_damage(native, contents, selected)
            for error in skipped.values():
                warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=2)
        reader = Reader(native, contents, device=device, mmap=mmap, verify=verify)
        leaves = self._read_leaves(reader, allow_pickle)
        rebuild = Rebuilder(contents.step, is_part=bool(selected) or skip_damaged)
        if flat:
            return rebuilt_flat(dict(zip(contents.fqns(), leaves)), rebuild)
        return contents.build(leaves, rebuild)

    def _read_leaves(self, reader: Reader, allow_pickle: bool) -> list[Any]:
        leaves = reader.read(allow_pickle)
        for check in reader.checks:
            self._map_checks.start(check)
        return leaves

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
            NotFound: the step or the key does not exist.
            Invalid: the key is a plain value, the box exceeds the shape, or ``out`` does not fit.
            Corrupt: the bytes differ from the written bytes.
        """
        from cairn._load.slices import BoxReader

        native, step = self._place_of(step)
        contents = native.contents(step, patterns_for(fqn))
        fqns = contents.fqns()
        if fqn not in fqns:
            from cairn._load.key_errors import no_such_key

            raise no_such_key(fqn, native.contents(contents.step, []))
        reader = BoxReader(native, contents)
        out = reader.add(fqns.index(fqn), ranges, out)
        reader.read()
        return out

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

        Raises:
            NotFound: the step or a key does not exist. Nothing has been read.
            Invalid: a key is a plain value, or a box exceeds the shape. Nothing has been read.
            Corrupt: the bytes differ from the written bytes.
        """
        from cairn._load.slices import BoxReader

        native, step = self._place_of(step)
        contents = native.contents(step, exact_patterns(boxes))
        places = {fqn: index for index, fqn in enumerate(contents.fqns())}
        reader = BoxReader(native, contents)
        results = {}
        for fqn, ranges in dict(boxes).items():
            if fqn not in places:
                from cairn._load.key_errors import no_such_key

                raise no_such_key(fqn, native.contents(contents.step, []))
            results[fqn] = reader.add(places[fqn], ranges)
        reader.read()
        return results

    def stream(
        self,
        step: int | str | None = None,
        patterns: Patterns = None,
        *,
        device: Any = None,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
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
            NotFound: the step does not exist, or no key matches; later: it was deleted, and its
                grace period has ended.
            Invalid: a malformed pattern; later: the store was closed.
            Corrupt: when the iteration arrives at a damaged tensor, which ``key`` names. Those
                before it were complete.
        """
        if read_ahead_bytes < 0:
            raise Invalid(f"read_ahead_bytes={read_ahead_bytes}: it may not be negative")
        selected = pattern_list(patterns)
        native, step = self._place_of(step)
        contents = native.contents(step, selected)
        check_match(selected, native, contents)
        from cairn._load.stream import stream

        return stream(native, contents, device, read_ahead_bytes)

    def wait_verified(self, timeout: float | None = None) -> bool:
        """Waits until all tensors of ``read(mmap=True, verify="lazy")`` were checked, at most for
        ``timeout`` seconds, and returns whether they were. Closing the store waits, too.

        Raises Corrupt if one of them is damaged, or what else has prevented its check.
        """
        return self._map_checks.wait(timeout)

    def steps(self) -> list[int]:
        """The step numbers, ascending, including the steps of fallback stores. A store that is open
        for reading sees the steps that a concurrent writer commits."""
        return self._native.steps() if self._tiers is None else self._tiers.steps()

    def keys(self, step: int | str | None = None, pattern: Patterns = None) -> dict[str, KeyInfo]:
        """The keys of ``step`` (by default the latest), by FQN, in the order of the state.

        ``pattern`` is as for :meth:`read`. No tensor is read. Returns an empty dict if no key
        matches. Raises NotFound if the step does not exist.
        """
        native, step = self._place_of(step)
        contents = native.contents(step, pattern_list(pattern))
        leaves = [leaf_at(contents, i) for i in range(len(contents))]
        return {leaf.fqn: key_info(leaf) for leaf in leaves}

    @watched("verifying")
    def damaged_keys(
        self,
        step: int | str | None = None,
        pattern: Patterns = None,
        *,
        progress: Progress | None = None,
    ) -> dict[str, Corrupt]:
        """The tensors of ``step`` (by default the latest) that cannot be read because the store is
        damaged: the error of each, by FQN. Tensors that share memory with a damaged one count as
        damaged. Reads all tensors that ``pattern`` selects (see :meth:`read`), and keeps none.
        ``progress`` is as in :func:`cairn.open`, for this call.

        Raises Corrupt if the records of the step are damaged, and NotFound if it does not exist.
        """
        native, step = self._place_of(step)
        return damaged_keys(native, native.contents(step, pattern_list(pattern)))

    def scrub(self, *, max_rate: int = 64 << 20, every: float = 86_400) -> Scrub:
        """Verifies the complete store in the background, again and again, as ``kv-dump verify``
        does. It has a separate handle, so it sees new steps, and may outlive this store.

        Args:
            max_rate: bytes of payload per second on average; 0 for no limit.
            every: seconds between the begins of two passes. A pass that takes longer is followed by
                the next one at once.

        Raises Invalid for a negative number, and what :func:`cairn.open` raises.
        """
        if max_rate < 0 or not 0 <= every < 1e9:
            raise Invalid(f"max_rate={max_rate}, every={every}: neither may be negative")
        from cairn._load.scrub import Scrub

        return Scrub(self._native.scrub(max_rate, every))

    def statistics(
        self, step: int | str | None = None, pattern: Patterns = None
    ) -> dict[str, TensorStatistics]:
        """The statistics that the save of ``step`` (by default the latest) recorded about its
        tensors, by FQN. No tensor is read.

        ``pattern`` is as for :meth:`read`. Tensors that have no statistics are left out: tensors of
        saves without ``statistics=True``, tensors in device memory, and tensors that share the
        bytes of others. Raises NotFound if the step does not exist.
        """
        from cairn.reports import TensorStatistics

        native, step = self._place_of(step)
        found = native.statistics(native.contents(step, pattern_list(pattern)))
        return {fqn: TensorStatistics(*values) for fqn, values in found.items()}

    def diff(self, a: int | str, b: int | str, pattern: Patterns = None) -> Diff:
        """How step ``b`` differs from step ``a``, by digests. No tensor is read.

        Raises NotFound if one of them does not exist; with fallback stores, if no store has both.
        """
        from cairn.reports import Diff, KeyChange

        a, b = (step_number(self._number(step)) for step in (a, b))
        native = None if self._tiers is None else self._tiers.find_both(a, b)
        changes, unchanged = (native or self._native).compare(a, b, pattern_list(pattern))
        return Diff(tuple(KeyChange(*change) for change in changes), unchanged)


def conversion_of(
    rename: Rename, dtype: Any = None, cast: bool = False, *, takes_stored: bool = False
) -> ConversionOptions | None:
    """The options of a conversion (cairn._load.conversions), which most loads do not import."""
    if rename is None and dtype is None and not cast:
        return None
    from cairn._load import conversions

    return conversions.conversion_of(rename, dtype, cast, takes_stored=takes_stored)


def contents_of(
    native: _cairn.Store,
    step: int | None,
    selected: list[str],
    conversion: ConversionOptions | None = None,
) -> _cairn.Contents:
    """The contents of a step that the patterns select, after the conversion. Raises NotFound if
    there are patterns that select nothing."""
    contents = native.contents(step, [] if conversion else selected)
    if conversion is None:
        check_match(selected, native, contents)
        return contents
    converted = conversion.convert(contents, selected)
    if selected and len(converted) == 0:
        from cairn._load.key_errors import no_match

        raise no_match(selected, conversion.convert(contents, []))
    return converted


def check_match(selected: list[str], native: _cairn.Store, contents: _cairn.Contents) -> None:
    """Raises NotFound if the patterns, of which `contents` is the result, match no key."""
    if selected and len(contents) == 0:
        from cairn._load.key_errors import no_match

        raise no_match(selected, native.contents(contents.step, []))
