"""The store: what `cairn.open` returns."""

from __future__ import annotations

import atexit
import operator
import os
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Union

from cairn import _cairn
from cairn.contents import key_info, leaf_at
from cairn.errors import Invalid, NotFound
from cairn.flatten import flatten
from cairn.loading import load_into
from cairn.reading import Reader
from cairn.reports import DeleteReport, Diff, KeyChange, KeyInfo, LoadReport, SaveReport
from cairn.slicing import BoxReader, Range

Patterns = Union[str, Iterable[str], None]
"""One pattern, several, or none: everything."""

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open(address: str | os.PathLike[str], mode: str = "r") -> Store:
    """Opens a store.

    Args:
        address: ``PATH`` or ``file:PATH``, a directory.
        mode: ``"r"`` reads, and sees the steps that a writer elsewhere commits from now on. ``"a"``
            reads and writes, making the store if it is absent; one process at a time may hold a
            store open for writing.

    Raises:
        NotFound: no store is there (``"r"``).
        Conflict: another process has it open for writing (``"a"``).
        Corrupt: its index is damaged.
        Invalid: what is there is no store, or of a newer format; a bad mode or address.
        Unavailable: permission or I/O error.
    """
    return Store(address, mode)


class SaveHandle:
    """A save that runs in the background. All methods may be called from any thread."""

    def __init__(self, native: _cairn.SaveHandle, step: int) -> None:
        self._native = native
        self._step = step
        self._pid = os.getpid()
        self._asked = False

    def wait_staged(self) -> None:
        """Waits until the state is copied; from then on the caller may change its tensors."""
        self._native.wait_staged()

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
    child must open the store again.

    What a state is
        Nested ``dict``, ``OrderedDict``, ``Counter``, ``list``, ``tuple`` and ``torch.Size`` with
        keys of type ``str``, ``int``, ``float``, ``bool`` or ``None``. Leaves are torch tensors of every dtype
        but the quantized ones, numpy arrays and scalars of numbers and bools, objects that speak
        DLPack (they come back as torch tensors), and ``None``, ``bool``, ``int``, ``float``,
        ``complex``, ``str`` and ``bytes``. The FQN of a leaf is its keys joined by ``.``; two
        leaves with one FQN are refused. Subclasses of these types are refused, as they would come
        back as something else; with ``allow_pickle=True`` other objects without tensors inside are
        pickled.

    What comes back
        The same nesting, order, key types and leaf types, bit for bit. Tensors are contiguous and
        in host memory, numpy arrays in native byte order. Tensors that overlapped in memory share
        memory again, tied parameters among them. Attributes of containers are not kept, such as
        the ``_metadata`` of a module's ``state_dict()``: its modules' versions, which
        ``load_state_dict`` needs only for states of older versions of torch.
    """

    def __init__(self, address: str | os.PathLike[str], mode: str = "r") -> None:
        if mode not in ("r", "a"):
            raise Invalid(f"mode {mode!r}: 'r' reads, 'a' reads and writes")
        self._address = os.fspath(address)
        if not isinstance(self._address, str):
            raise Invalid(f"address {address!r}: a str or a path of str is needed")
        self._mode = mode
        self._pid = os.getpid()
        self._closed = False
        self._last_save: SaveHandle | None = None
        self._native = _cairn.Store(self._address, mode == "a")
        _open_stores.add(self)

    def save(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        chunk_bytes: int | None = None,
        allow_pickle: bool = False,
    ) -> SaveReport:
        """Writes ``state`` as ``step``; when it returns the step is durable, and whole.

        Tensors in host memory are read where they are; others are copied to host memory first.
        Chunks that the base step has already, bit for bit, are not written again.

        Args:
            step: number of the step, 0 to 2**64 - 1.
            state: nested containers of tensors and plain values (see the class).
            overwrite: replaces the step if it exists, in one atomic switch.
            incremental: ``False`` writes every byte.
            base_step: the step to compare with; by default the latest.
            chunk_bytes: size of the pieces that tensors are cut into; by default 4 MiB.
            allow_pickle: pickles leaves of other types.

        Raises:
            Conflict: the step exists.
            Invalid: something in the state cannot be kept (``key`` says which), or the store was
                opened for reading.
            Unavailable: no space, or an I/O error. The store is as it was.
        """
        self._wait_for_last_save()
        batch = flatten(state, allow_pickle)
        report = self._native.save(
            _step_number(step), batch, overwrite, incremental, base_step, chunk_bytes
        )
        return SaveReport(*report)

    def save_async(
        self,
        step: int,
        state: Any,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        chunk_bytes: int | None = None,
        allow_pickle: bool = False,
    ) -> SaveHandle:
        """Copies ``state`` into staging memory and writes it in the background.

        The step is what the state is now, whatever is changed after :meth:`SaveHandle.wait_staged`.
        The staging memory is as large as the tensors and is used again by the next save. While one
        save runs, another waits for it first. Closing the store, or leaving Python, waits for it
        too. Arguments as for :meth:`save`.

        Raises:
            Conflict, Invalid: as :meth:`save`, at once. What goes wrong later is raised by
                :meth:`SaveHandle.result`.
        """
        self._wait_for_last_save()
        batch = flatten(state, allow_pickle)
        native = self._native.save_async(
            _step_number(step), batch, overwrite, incremental, base_step, chunk_bytes
        )
        self._last_save = SaveHandle(native, step)
        return self._last_save

    def load(
        self,
        state: Any,
        step: int | None = None,
        strict: bool = True,
        *,
        allow_pickle: bool = False,
    ) -> LoadReport:
        """Fills ``state`` in place from ``step`` (by default the latest), leaf by leaf by FQN.

        Tensors and arrays keep their memory, strides and device and get new contents; dtype and
        shape must be those of the step. Meta tensors are replaced, in their container, by new
        tensors in host memory. Plain values are replaced in their containers; tuples around them
        are made anew. All of that is checked before anything is changed.

        Note that ``optimizer.state_dict()`` is partly a copy: after the load hand the filled state
        to ``optimizer.load_state_dict``.

        Args:
            strict: ``False`` allows keys that only one side has.

        Raises:
            NotFound: no such step; or (strict) the step lacks keys of the state.
            Invalid: (strict) the state lacks keys of the step; dtypes, shapes or kinds differ.
            Corrupt: bytes are not what was written. The state is partly filled then.
        """
        contents = self._native.contents(step, [])
        return load_into(self._native, state, contents, strict=strict, allow_pickle=allow_pickle)

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
            _step_number(a), _step_number(b), _pattern_list(pattern)
        )
        return Diff(tuple(KeyChange(*change) for change in changes), unchanged)

    def delete(self, *steps: int) -> DeleteReport:
        """Deletes whole steps at once; bytes that other steps refer to stay.

        Raises NotFound, with nothing deleted, if one of them does not exist; Invalid if the store
        was opened for reading.
        """
        self._wait_for_last_save()
        numbers = tuple(_step_number(step) for step in steps)
        _, segments, freed_bytes = self._native.delete(numbers, False)
        return DeleteReport(numbers, segments, freed_bytes)

    def prune(self, *, keep_last: int = 0, keep_every: int = 0) -> DeleteReport:
        """Deletes all steps but the last ``keep_last`` and the multiples of ``keep_every``.

        Raises Invalid if that would keep nothing by intent: at least one must be positive.
        """
        if keep_last < 0 or keep_every < 0 or keep_last + keep_every == 0:
            raise Invalid("prune: keep_last or keep_every must be positive, and none negative")
        steps = self.steps()
        recent = set(steps[-keep_last:]) if keep_last else set()
        doomed = [
            step
            for step in steps
            if step not in recent and not (keep_every and step % keep_every == 0)
        ]
        return self.delete(*doomed) if doomed else DeleteReport((), 0, 0)

    def close(self) -> None:
        """Waits for a running asynchronous save and releases the store. May be called again.

        Raises what went wrong with that save, if nobody has asked its handle.
        """
        if self._closed:
            return
        last_save, self._last_save = self._last_save, None
        try:
            if last_save is not None:
                last_save._wait()
        finally:
            self._native.close()
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
            self.close()
        except Exception as second:
            warnings.warn(f"while the store was closed: {second}", RuntimeWarning)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<cairn.Store {self._address!r} mode={self._mode!r}{state}>"

    def _wait_for_last_save(self) -> None:
        # Here, where Ctrl-C can end the waiting; its error stays with its handle.
        if self._last_save is not None:
            self._last_save._wait()


def _step_number(step: int) -> int:
    number = operator.index(step)
    if not 0 <= number < 2**64:
        raise Invalid(f"step {number}: steps are 0 to 2**64 - 1")
    return number


def _no_such_key(fqn: str, step: int) -> NotFound:
    return NotFound(f"step {step} has no key '{fqn}': keys() lists them", key=fqn, step=step)


def _pattern_list(patterns: Patterns) -> list[str]:
    if patterns is None:
        return []
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _pattern_for(fqn: str) -> list[str]:
    """Patterns that take `fqn`, whatever it holds, and perhaps some more."""
    # "?" stands for itself as for any other character.
    return ["".join("?" if char in "*?[]!" else char for char in fqn)] if fqn else []


def _close_all() -> None:
    # A daemon thread or a forgotten store must not be torn down under a running save.
    for store in list(_open_stores):
        if store._pid == os.getpid():
            try:
                store.close()
            except Exception as error:
                warnings.warn(f"while {store!r} was closed at exit: {error}", RuntimeWarning)


atexit.register(_close_all)
