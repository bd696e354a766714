"""The storage writer: saves DCP's write items as parts of tensors, and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, SerializationFormat
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from cairn._base import dtypes
from cairn._base.devices import HOST, current_streams
from cairn._mirror import store_mirrors
from cairn._mirror.options import Mirror, Mirrors, mirror_chain
from cairn._ranks.sharded import Shards
from cairn._tensors.sources import Source, Sources
from cairn._tensors.subclasses import is_subclass
from cairn.dcp import _saves as saves
from cairn.dcp._location import (
    CheckpointId,
    Located,
    Location,
    locate,
    required,
    warn_of_ignored,
)
from cairn.dcp._metadata import EXTENSION, encode, paths_of, shard_key
from cairn.dcp._values import ALONE, flat_values, overrides, value_of
from cairn.errors import Invalid
from cairn.reports import MirrorStatus
from cairn.torch import StateDictStager

_STAGED_BYTES = 512 << 20

# The default planner's give the caller's tensors.
_GIVES_TENSORS = ("resolve_data", "lookup_object", "transform_object")


class CairnWriter(Located, StorageWriter, AsyncStager):
    """Saves a step of a store with ``torch.distributed.checkpoint``.

    For ``dcp.save(..., storage_writer=...)`` and ``dcp.async_save``, on threads and processes. When
    ``dcp.save`` returns, the step is complete and durable. If the save fails, the step does not
    exist; a step that it would have replaced is unchanged.

    Threads: only one thread at a time may use a writer. A writer can be pickled.

    Args:
        path: address of the store, or ``ADDRESS@STEP``. May be omitted if DCP is given a
            ``checkpoint_id``, which names an address in the same way.
        step: step number. By default the store contains only this checkpoint, as step 0.
        overwrite: replaces an existing step; otherwise an existing step is a Conflict.
        allow_pickle: saves values that are neither tensors nor plain as pickles; the reader must
            allow this too.
        chunk_bytes: size of the chunks that tensors are split into; by default 4 MiB.
        per_thread_copy_ahead: limit in bytes, at any time, of tensors that the planner creates or
            that are copied to the host from devices other than CUDA's (at least one tensor); by
            default 512 MiB. Tensors in host memory and on CUDA devices are written in place, those
            on a device after the work on its current stream.
        cache_staged_state_dict: ``dcp.async_save`` reuses its host copies for the next save with
            this writer (see :class:`cairn.torch.StateDictStager`); otherwise they are freed after
            the save.
        mirror: the address of a store, a :class:`cairn.Mirror`, or a sequence of them, from near to
            far, each of which copies from the one before it. A thread of the process that commits
            the step copies it there after it is durable (docs/mirroring.md).
        mirror_every: interval of steps that are copied to a mirror that is given as an address, at
            least 1.

    ``single_file_per_rank``, ``sync_files``, ``thread_count`` and ``serialization_format`` of
    ``FileSystemWriter`` have no meaning for a store, and are ignored with one warning.
    ``_extensions``, which would change the bytes, are refused.

    Raises (as the cause inside a ``CheckpointException`` of DCP, on every rank):
        Conflict: another process has the store open for writing; the step exists.
        Invalid: something cannot be saved (``key`` names it), or the parts of the ranks do not form
            complete tensors; a mirror is the store itself or the mirror of another one.
        Unavailable: no space, or an I/O error.
    """

    def __init__(
        self,
        path: CheckpointId = None,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = _STAGED_BYTES,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: Any = None,
        serialization_format: SerializationFormat = SerializationFormat.TORCH_SAVE,
        *,
        step: int | None = None,
        allow_pickle: bool = False,
        chunk_bytes: int | None = None,
        mirror: Mirrors | None = None,
        mirror_every: int = 1,
    ) -> None:
        if _extensions:
            raise Invalid("_extensions: Cairn stores payload unchanged, with digests. Omit them")
        warn_of_ignored(
            single_file_per_rank=not single_file_per_rank,
            sync_files=not sync_files,
            thread_count=thread_count != 1,
            serialization_format=serialization_format != SerializationFormat.TORCH_SAVE,
        )
        self._step = step
        self._location = locate(path, step)
        # Attributes of torch's FileSystemWriter, which other code reads.
        self.single_file_per_rank, self.sync_files = single_file_per_rank, sync_files
        self.thread_count = thread_count
        self.serialization_format = serialization_format
        self.rank: int | None = None
        self.use_collectives = True
        self._mirror = mirror
        self._mirror_every = mirror_every
        self._chain()  # raises Invalid
        self.overwrite = overwrite
        self._allow_pickle = allow_pickle
        self._chunk_bytes = chunk_bytes
        self.per_thread_copy_ahead = per_thread_copy_ahead
        self._stager = StateDictStager() if cache_staged_state_dict else None
        self.save_id = saves.new_id()
        self._plan_is_cached = False
        self._part: saves.Part | None = None

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """Starts a new save, to ``checkpoint_id`` if it is given.

        Raises Conflict while a save with this writer is running on another thread.
        """
        self._close_earlier()
        self.save_id = saves.new_id()
        if checkpoint_id:
            self._location = locate(checkpoint_id, self._step)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._close_earlier()
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        required(self._location)
        self._plan_is_cached = not plan.usable
        return _with_shared_parts(plan)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Opens the store for writing, and adds a ticket to the plan of each rank."""
        location = self._place()
        store_mirrors.check(location.address, self._chain())
        self._part = saves.open_for_save(location, self.overwrite)
        tickets = saves.tickets(self._part, location, len(plans))
        if not all(plan.usable for plan in plans):
            saves.publish_ticket(tickets[0])
        return [
            dataclasses.replace(plan, storage_data=ticket) for plan, ticket in zip(plans, tickets)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's part. On ranks other than the coordinator, it is durable
        afterwards. The results omit data that `finish` does not need, because the coordinator
        receives the results of all ranks."""
        try:
            ticket = saves.current_ticket(
                plan.storage_data,
                self._place().address,
                self.rank,
                plan_is_cached=self._plan_is_cached,
            )
            if self._part is None:
                # Not the coordinator's address: this host may have the file system elsewhere.
                self._part = saves.Part(self._place().address, ticket.attempt[2])
            results = self._write(self._part, ticket, plan, planner)
        except BaseException as error:
            self._abort(error)
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Merges the parts of all ranks, and commits the step."""
        if self._part is None:
            raise Invalid("finish must follow write_data, on the coordinator")
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_meta = self.storage_meta()
        metadata.storage_data = None  # a cached plan may contain another writer's
        forms = {result.index.fqn: result.storage_data for each in results for result in each}
        mirrors = self._chain()
        try:
            metadata_json = encode(metadata, forms)
            paths = paths_of(metadata.planner_data) or {}
            earlier_steps = self._part.store.steps() if mirrors else []
            uuid = self._part.store.uuid()
            self._part.native.commit(paths, {EXTENSION: metadata_json})
            saves.leave_marker(self._part)
        finally:
            self._close()
        location = self._place()
        store_mirrors.submit(
            location.address,
            location.step or 0,
            mirrors,
            uuid=uuid,
            overwrite=self.overwrite,
            earlier_steps=earlier_steps,
        )

    def wait_mirrored(self, timeout: float | None = None) -> None:
        """Waits until no step of the store waits for its copy to a mirror. Returns at once in
        processes that have not committed a step with ``mirror=``.

        Raises TimeoutError after ``timeout`` seconds, and the error of the newest step if it was
        not copied.
        """
        store_mirrors.wait(self._place().address, timeout)

    def mirror_status(self) -> list[MirrorStatus]:
        """The state of each mirror of the store; an empty list in processes that have not committed
        a step with ``mirror=``."""
        return store_mirrors.status(self._place().address)

    # Staging for dcp.async_save without a stager.

    # torch's protocol of stagers: staging is complete when `stage` returns.
    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of the state in host memory. Raises as
        :meth:`cairn.torch.StateDictStager.stage`."""
        if self._stager is not None:
            return self._stager.stage(state_dict)
        with StateDictStager() as once:
            return once.stage(state_dict)

    def synchronize_staging(self) -> None:
        """Does nothing: staging is synchronous."""

    def close(self) -> None:
        """Drops the host copies, and aborts an unfinished save.

        Raises Conflict while a save with this writer is running on another thread.
        """
        self._close_earlier()
        if self._stager is not None:
            self._stager.close()

    def _place(self) -> Location:
        location = required(self._location)
        if self.use_collectives or self.rank is None:
            return location
        return location.of_rank(self.rank)

    def _chain(self) -> tuple[Mirror, ...]:
        """The mirrors of the location. Raises Invalid if they do not form a chain."""
        source = "memory:" if self._location is None else self._place().address
        mirrors = mirror_chain(self._mirror, source, self._mirror_every)
        if self.use_collectives or self.rank is None:
            return mirrors
        rank = self.rank
        return tuple(
            dataclasses.replace(mirror, address=Location(str(mirror), None).of_rank(rank).address)
            for mirror in mirrors
        )

    def _write(
        self, part: saves.Part, ticket: saves.Ticket, plan: SavePlan, planner: SavePlanner
    ) -> list[WriteResult]:
        part.native.begin(
            ticket.attempt,
            ticket.rank,
            overwrite=self.overwrite,
            chunk_bytes=self._chunk_bytes,
            **ticket.base,
        )
        portion = _Portion(self.use_collectives)
        for items in _by_fqn(plan.items):
            portion.add(items, planner, self._allow_pickle)
            if portion.staged_bytes >= self.per_thread_copy_ahead:
                portion.write(part)
                portion = _Portion(self.use_collectives, portion.results)
        portion.write(part)
        if ticket.rank != 0:
            part.native.prepare()
            self._close()
        return portion.results

    def _abort(self, error: BaseException) -> None:
        """Aborts after an error, which an error of the abort must not hide."""
        part = self._part
        if part is None or part.has_other_ranks:
            return  # ranks that join later would fail too, without having failed themselves
        self._part = None
        with suppress(Exception):  # the part was not started; DCP reports the error to the others
            part.native.abort(str(error))
        with suppress(Exception):  # the next open for writing cleans up
            part.close()

    def _close(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close()

    def _close_earlier(self) -> None:
        if self._part is not None:
            self._part.close_for_next_save()
        self._part = None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_part": None, "_stager": None}


def _with_shared_parts(plan: SavePlan) -> SavePlan:
    """An equal plan, in which equal shapes, offsets and properties of tensors are one object, so
    that pickle stores each of them once: the coordinator receives and returns all plans."""
    known: dict[Hashable, Any] = {}

    def one(size: Any) -> Any:
        return known.setdefault((type(size), tuple(size)), size)

    def shared(item: WriteItem) -> WriteItem:
        data = item.tensor_data
        # Objects of subclasses may have more fields.
        if type(data) is not TensorWriteData or type(data.chunk) is not ChunkStorageMetadata:
            return item
        chunk = ChunkStorageMetadata(one(data.chunk.offsets), one(data.chunk.sizes))
        key = (type(data.properties), *vars(data.properties).values())
        properties = known.setdefault(key, data.properties)
        return dataclasses.replace(
            item, tensor_data=TensorWriteData(chunk, properties, one(data.size))
        )

    return dataclasses.replace(plan, items=[shared(item) for item in plan.items])


class _Portion:
    """Some of a rank's items, whose tensors are in memory at the same time. C++ reads the caller's
    tensors in host memory and on CUDA devices in place, and copies of other tensors."""

    def __init__(self, use_collectives: bool, results: list[WriteResult] | None = None) -> None:
        """`use_collectives`: other ranks write the rest of tensors that have shards here."""
        self._use_collectives = use_collectives
        self.results = [] if results is None else results
        """Only results of bytes items that have a form (cairn.dcp._values)."""
        self.staged_bytes = 0
        """Bytes of tensors that are not the caller's own memory."""
        self._leaves: dict[str, Any] = {}
        self._shards: dict[str, tuple[int, tuple[Any, ...]]] = {}
        self._owners: list[Any] = []
        self._devices: set[int] = set()
        self._sources = Sources(Shards(ALONE))

    def add(self, items: list[WriteItem], planner: SavePlanner, allow_pickle: bool) -> None:
        """Adds all items of one FQN. Raises Invalid if something cannot be saved."""
        if items[0].type == WriteItemType.BYTE_IO:
            fqn = items[0].index.fqn
            value, form = value_of(planner, items[0], allow_pickle)
            self._leaves[fqn] = value
            if form is not None:
                self.results.append(WriteResult(items[0].index, 0, form))
            return
        for item in items:
            self._add_tensor(item, planner)

    def write(self, part: saves.Part) -> None:
        """Writes, after the work on the current streams. When it returns, no tensor is read any
        more."""
        batch = flat_values(self._leaves)
        streams = current_streams(self._devices.union(batch.devices()))
        part.native.add(batch, self._shards, streams)

    def _add_tensor(self, item: WriteItem, planner: SavePlanner) -> None:
        fqn = item.index.fqn
        tensor = planner.resolve_data(item)
        if is_subclass(tensor) and item.tensor_data.chunk.sizes == item.tensor_data.size:
            self._leaves[fqn] = tensor  # saved as its inner tensors
            return
        tensor = tensor.detach()
        source = self._sources.take(tensor, fqn)
        _check_chunk(item, source)
        is_copy = source.device == HOST and tensor.device.type != "cpu"
        if is_copy or overrides(planner, DefaultSavePlanner, *_GIVES_TENSORS):
            self.staged_bytes += tensor.nbytes
        offsets, size = tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.size)
        if item.type == WriteItemType.TENSOR and source.shape == size:
            # Saved with the values, so that tensors that share memory are written once, and share
            # it again.
            self._leaves[fqn] = source.owner
            return
        if not self._use_collectives and source.shape != size:
            fqn, offsets, size = shard_key(fqn, offsets), (0,) * len(size), source.shape
        dtype, (_, _, parts) = self._shards.setdefault(fqn, (source.dtype, (size, None, [])))
        if dtype != source.dtype:
            raise Invalid(
                f"'{fqn}': one shard is {dtypes.name_of(dtype)}, another "
                f"{dtypes.name_of(source.dtype)}",
                key=fqn,
            )
        parts.append((offsets, source.shape, source.strides, source.address, source.device))
        if source.device != HOST:
            self._devices.add(source.device)
        self._owners.append(source.owner)


def _by_fqn(items: list[WriteItem]) -> Iterable[list[WriteItem]]:
    groups: dict[str, list[WriteItem]] = {}
    for item in items:
        groups.setdefault(item.index.fqn, []).append(item)
    return groups.values()


def _check_chunk(item: WriteItem, source: Source) -> None:
    planned = tuple(item.tensor_data.chunk.sizes)
    if source.shape != planned:
        fqn = item.index.fqn
        raise Invalid(
            f"'{fqn}': the plan has a shard of {list(planned)}, the planner gives one of "
            f"{list(source.shape)}",
            key=fqn,
        )
