"""The storage reader: DCP's read items as boxes of tensors, and values as DCP's bytes items."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from cairn import _cairn
from cairn._base import devices
from cairn._base.open_options import OpenOptions
from cairn._opened.continued import note_loaded
from cairn._tensors.contents import leaf_at
from cairn._tensors.subclasses import SUBCLASS_KEY, check_same, describe, is_subclass
from cairn._tensors.targets import Target, check_shape, mark_changed, staged_target_of
from cairn.dcp._location import (
    CheckpointId,
    Located,
    Location,
    locate,
    required,
    warn_of_ignored,
)
from cairn.dcp._metadata import load_metadata, shard_key
from cairn.dcp._saves import new_id
from cairn.dcp._values import PlannerBytes, Values, overrides, set_value
from cairn.errors import Corrupt, Invalid, NotFound
from cairn.store import Store

# Limit of the memory that planners allocate for targets, or that is between file and device.
_STAGED_BYTES = 512 << 20


class CairnReader(Located, StorageReader):
    """Loads a step of a store with ``torch.distributed.checkpoint``, whatever has saved the step.

    For ``dcp.load(..., storage_reader=...)``. Every rank reads only the 64 KiB pages that contain
    the boxes that it needs; each page is checked against its digest.

    Threads: only one thread at a time may use a reader. A reader can be pickled.

    Args:
        path: address of the store, or ``ADDRESS@STEP``. May be omitted if DCP is given a
            ``checkpoint_id``, which names an address in the same way.
        step: step number; by default the latest.
        fallback: addresses of stores with copies of the steps, from near to far, such as the
            mirrors of a writer. The nearest store that has the step is used; see
            :func:`cairn.open`.
        allow_pickle: passes objects that were saved as pickles (with ``allow_pickle=True``) to the
            planner, which unpickles them. This can run any code.

    ``_extension_registry`` and ``thread_count`` of ``FileSystemReader`` have no meaning for a
    store, and are ignored with one warning.

    Raises (as the cause inside a ``CheckpointException`` of DCP):
        NotFound: the store, step or key does not exist.
        Corrupt: the bytes differ from the written bytes.
        Invalid: a box exceeds the tensor, or a pickle is not allowed.
    """

    def __init__(
        self,
        path: CheckpointId = None,
        step: int | None = None,
        *,
        allow_pickle: bool = False,
        fallback: Sequence[str | os.PathLike[str]] = (),
        _extension_registry: Any = None,
        thread_count: int = 8,
    ) -> None:
        super().__init__()
        warn_of_ignored(
            _extension_registry=_extension_registry is not None, thread_count=thread_count != 8
        )
        self._step = step
        self._location = locate(path, step)
        self._allow_pickle = allow_pickle
        if isinstance(fallback, (str, os.PathLike)):
            fallback = (fallback,)
        self._fallback = tuple(_store_only(other) for other in fallback)
        self.load_id = new_id()
        self.rank: int | None = None
        self.use_collectives = True
        self.thread_count = thread_count
        self.storage_data: dict[Any, Any] = {}
        """Empty: torch's place of each item in files, which subclasses of its reader look into."""
        self._opened: _OpenStep | None = None

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """Starts a new load, from ``checkpoint_id`` if it is given."""
        self._close()
        self.load_id = new_id()
        if checkpoint_id:
            self._location = locate(checkpoint_id, self._step)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of the step. ``rank=`` selects what that rank has saved by itself."""
        location = required(self._location)
        rank = kwargs.get("rank")
        fallback = self._fallback
        if rank is not None:
            location = location.of_rank(rank)
            fallback = tuple(other.of_rank(rank) for other in fallback)
        self._close()
        options = OpenOptions(alone=True, fallback=tuple(other.address for other in fallback))
        store = Store(location.address, "r", None, options)
        self._opened = _OpenStep(store, location.step, bool(fallback), rank is not None)
        metadata = self._opened.described.metadata
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta(str(location))
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Only sets attributes: every rank has read the metadata from its step."""
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Sends the step of the coordinator to every rank, so that no rank reads another one."""
        found = None if self._opened is None else self._opened.identity
        return [dataclasses.replace(plan, storage_data=found) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fills the tensors of the planner, and passes it the values that it requests."""
        if self._opened is None:
            raise Invalid("read_data must follow read_metadata")
        try:
            self._opened.check_same(plan.storage_data)
            self._opened.read(plan.items, planner, self._allow_pickle)
            if not self._opened.of_one_rank:
                note_loaded(self._opened.store.opened.native, self._opened.contents.info)
        finally:
            self._close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.store.close()

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_opened": None}


_Place = tuple[str, tuple[int, ...], Target]
"""The name of a tensor of the step, the offsets of a box in it, and where the box is read to."""


class _TensorRead(NamedTuple):
    """A read item of DCP, the planner's tensor for it, and what is read into that tensor: one box,
    or the inner tensors of a tensor subclass."""

    item: ReadItem
    tensor: torch.Tensor
    places: list[_Place]


class _OpenStep:
    """A step that is being read."""

    def __init__(
        self, store: Store, step: int | None, has_fallback: bool, of_one_rank: bool
    ) -> None:
        self.store = store
        self._has_fallback = has_fallback
        self.of_one_rank = of_one_rank
        self.native, number = store.opened.place_of(step)
        self.contents = self.native.contents(number, [])
        self.described = load_metadata(self.native, self.contents)
        self._described_subclasses: dict[str, Any] | None = None

    @property
    def identity(self) -> tuple[int, int | str]:
        """Equal on all ranks that read the same save of the step, or copies of it."""
        step = self.contents.step
        if self._has_fallback:  # copies of a step have other generations
            return step, self.native.step_info(step).attempt
        return step, self.contents.generation

    def check_same(self, coordinators: tuple[int, int | str] | None) -> None:
        """Raises NotFound if the coordinator has found another step than this rank."""
        if self.of_one_rank or coordinators in (None, self.identity):
            return
        step, other = self.contents.step, coordinators[0]
        found = f"step {other}" if step != other else f"another save of step {step}"
        raise NotFound(
            f"a step was saved while the ranks started to load: the coordinator has found {found}, "
            f"this rank step {step}; load again, or name a step",
            step=step,
        )

    def read(self, items: list[ReadItem], planner: LoadPlanner, allow_pickle: bool) -> None:
        for portion in self._portions(items, planner):
            self._read_tensors(portion, planner)
        wanted = [item for item in items if item.type == LoadItemType.BYTE_IO]
        if not wanted:
            return
        values = Values(self.native, self.contents, self.described, allow_pickle)
        found = values.read([item.storage_index.fqn for item in wanted], planner)
        for item, value in zip(wanted, found):
            if isinstance(value, PlannerBytes):
                planner.load_bytes(item, io.BytesIO(value.data))
            else:
                set_value(planner, item, value)

    def _portions(self, items: list[ReadItem], planner: LoadPlanner) -> Iterator[list[_TensorRead]]:
        """Tensor items with their targets, in portions that bound the additional memory."""
        # The default planner's targets are the tensors of the caller.
        lends = not overrides(
            planner, DefaultLoadPlanner, "resolve_tensor", "lookup_tensor", "transform_tensor"
        )
        portion: list[_TensorRead] = []
        staged_bytes = 0
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                continue
            read = self._tensor_read(item, planner.resolve_tensor(item))
            portion.append(read)
            for _, _, target in read.places:
                if not lends or target.finish is not None:
                    staged_bytes += target.owner.nbytes
            if staged_bytes >= _STAGED_BYTES:
                yield portion
                portion, staged_bytes = [], 0
        if portion:
            yield portion

    def _tensor_read(self, item: ReadItem, tensor: torch.Tensor) -> _TensorRead:
        fqn, offsets = self._place_of(item)
        if tuple(tensor.shape) != tuple(item.lengths):
            raise Invalid(
                f"'{fqn}': the planner gave a tensor of {list(tensor.shape)} for a box of "
                f"{list(item.lengths)}",
                key=fqn,
            )
        info = self.contents.find_tensor(fqn)
        if info is None and fqn in self._descriptions():
            return _TensorRead(item, tensor, list(self._inner_places(fqn, tensor)))
        if info is None:
            step = self.contents.step
            raise NotFound(f"step {step} has no tensor '{fqn}'", key=fqn, step=step)
        tensor = tensor.detach()
        target = staged_target_of(tensor, info.dtype, fqn)
        return _TensorRead(item, tensor, [(fqn, offsets, target)])

    def _inner_places(self, fqn: str, tensor: torch.Tensor) -> Iterator[_Place]:
        """The places of the inner tensors of a tensor subclass. Raises Invalid if the target is not
        the same subclass."""
        step = self.contents.step
        if not is_subclass(tensor):
            raise Invalid(
                f"'{fqn}' is a tensor subclass in step {step} but a {type(tensor).__qualname__} "
                "in the target: load it into a complete tensor of the same subclass, or use "
                "Store.read",
                key=fqn,
                step=step,
            )
        inner = describe(tensor, fqn)
        check_same(self._descriptions().get(fqn), inner.pop(SUBCLASS_KEY), fqn, step)
        for name, part in inner.items():
            key = f"{fqn}.{name}"
            info = self.contents.find_tensor(key)
            if info is not None:
                check_shape(key, step, info.shape, tuple(part.shape))
                yield key, (0,) * len(info.shape), staged_target_of(part.detach(), info.dtype, key)
            elif key in self._descriptions():
                yield from self._inner_places(key, part)
            else:
                raise Corrupt(f"step {step} has no tensor '{key}'", key=key, step=step)

    def _descriptions(self) -> dict[str, Any]:
        """The descriptions of the tensor subclasses of the step, by FQN."""
        if self._described_subclasses is None:
            ends = f".{SUBCLASS_KEY}"
            self._described_subclasses = {
                key.removesuffix(ends): leaf_at(self.contents, index).value
                for index, key in enumerate(self.contents.fqns())
                if key.endswith(ends)
            }
        return self._described_subclasses

    def _read_tensors(self, portion: list[_TensorRead], planner: LoadPlanner) -> None:
        requests = _cairn.Requests()
        for read in portion:
            for fqn, offsets, target in read.places:
                place = target.strides, target.address, target.device
                requests.add(fqn, offsets, target.shape, (target.dtype, *place))
        mark_changed(target.owner for read in portion for *_, target in read.places)
        devices.load(self.native, self.contents.info, requests)
        for read in portion:
            for _, _, target in read.places:
                target.complete()
            planner.commit_tensor(read.item, read.tensor)

    def _place_of(self, item: ReadItem) -> tuple[str, tuple[int, ...]]:
        """The name of the tensor in the store, and the offsets of the box in it. DCP's offsets are
        relative to the saved shard that the item names."""
        fqn, shard = item.storage_index.fqn, item.storage_index.offset
        inside = tuple(item.storage_offsets)
        if shard is None:
            return fqn, inside
        if self.of_one_rank and self.contents.find_tensor(fqn) is None:
            return shard_key(fqn, shard), inside
        return fqn, tuple(a + b for a, b in zip(shard, inside))


def _store_only(address: str | os.PathLike[str]) -> Location:
    location = required(locate(address, None))
    if location.step is not None:
        raise Invalid(f"fallback '{location}': give the address of a store, without a step")
    return location
