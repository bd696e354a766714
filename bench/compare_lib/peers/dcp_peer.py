"""torch.distributed.checkpoint in one process, with its fastest settings for host memory."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable
from typing import Any

from compare_lib.peers.base import (
    EVERYTHING_STAGED,
    NO_INCREMENT,
    THREADS,
    Finish,
    Peer,
    Slices,
    Steps,
    empty_boxes,
    sync_file,
    sync_path,
    time_import,
)
from compare_lib.rank_jobs import RanksOfDcp
from compare_lib.small_dcp import save_and_load
from compare_lib.states import State, Tensors


def _empty_like(tensors: Tensors) -> Tensors:
    import torch

    return {key: torch.empty_like(tensor) for key, tensor in tensors.items()}


def box_planner(slices: Slices) -> Any:
    """Returns a planner that reads these boxes as the ranks of a mesh would."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    class BoxPlanner(dcp.DefaultLoadPlanner):
        def create_local_plan(self) -> Any:
            items = []
            for key, ranges in slices.items():
                begins = torch.Size(begin for begin, _ in ranges)
                sizes = torch.Size(end - begin for begin, end in ranges)
                box = ChunkStorageMetadata(begins, sizes)
                of_key = self.metadata.state_dict_metadata[key]
                items += create_read_items_for_chunk_list(key, of_key, [box])
            return dcp.planner.LoadPlan(items)

        def lookup_tensor(self, index: Any) -> Any:
            return self.state_dict[index.fqn]

    return BoxPlanner()


class DcpPeer(RanksOfDcp, Peer):
    name = "dcp"
    storage = "dcp"
    cannot = {"second_save": NO_INCREMENT, "save_async_stated": EVERYTHING_STAGED}
    cannot_partly = {"stall_1": EVERYTHING_STAGED}
    remarks = (
        f"FileSystemWriter(thread_count={THREADS}, sync_files=True), then fsync of the directory, "
        "which it omits; FileSystemReader, which has no threads in this version; async_save "
        "with a DefaultStager that is kept (cached staging memory; pinning it needs CUDA)",
        "on several ranks FileSystemWriter(sync_files=True), with one thread each",
    )

    def _writer(self, path: Any) -> Any:
        import torch.distributed.checkpoint as dcp

        return dcp.FileSystemWriter(path, thread_count=THREADS, sync_files=True)

    def import_package(self) -> Steps:
        yield from time_import("torch.distributed.checkpoint")

    def save(self, state: State) -> Steps:
        import torch.distributed.checkpoint as dcp

        yield
        dcp.save(state.tensors, storage_writer=self._writer(self.directory), no_dist=True)
        sync_path(self.directory)
        yield None

    def _load(self, tensors: Tensors, planner: Any = None) -> Tensors:
        import torch.distributed.checkpoint as dcp

        reader = dcp.FileSystemReader(self.directory)
        dcp.load(tensors, storage_reader=reader, planner=planner, no_dist=True)
        return tensors

    def load_new(self, state: State) -> Steps:
        import torch.distributed.checkpoint  # noqa: F401

        yield
        yield self._load(_empty_like(state.tensors))

    def load_existing(self, state: State, targets: Tensors) -> Steps:
        import torch.distributed.checkpoint  # noqa: F401

        yield
        yield self._load(targets)

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        import torch.distributed.checkpoint  # noqa: F401

        yield
        yield self._load(_empty_like({key: state.tensors[key] for key in keys}))

    def load_slices(self, state: State, slices: Slices) -> Steps:
        planner = box_planner(slices)
        yield
        yield self._load(empty_boxes(state, slices), planner)

    def save_async(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        stager = DefaultStager(StagingOptions(False, False, False, False))
        numbers = itertools.count(1)

        def stall() -> Finish:
            path = self.scratch / str(next(numbers))
            # The stager has no threads, so staging is complete when this returns.
            future = dcp.async_save(
                state.tensors,
                storage_writer=self._writer(path),
                async_stager=stager,
                no_dist=True,
            )

            def finish() -> None:
                future.result()
                shutil.rmtree(path)

            return finish

        return stall

    def small_saves(self, state: State) -> Callable[[int], None]:
        import torch.distributed.checkpoint as dcp

        def save(number: int) -> None:
            path = self.scratch / str(number)
            dcp.save(state.tensors, storage_writer=self._writer(path), no_dist=True)
            sync_file(path)

        return save

    def dcp_saves_and_loads(self, state: State) -> Steps:
        import torch.distributed.checkpoint as dcp

        def path(number: int) -> Any:
            return self.scratch / str(number)

        return save_and_load(
            state,
            writer=lambda number: self._writer(path(number)),
            reader=lambda number: dcp.FileSystemReader(path(number)),
            saved=lambda number: sync_file(path(number)),
        )

    def make_metadata(self, chunks: int) -> None:
        with open(self.directory / ".metadata", "wb") as file:
            pickle.dump(_metadata_of(chunks), file)

    def open_metadata(self, chunks: int) -> Steps:
        import torch.distributed.checkpoint as dcp

        yield
        metadata = dcp.FileSystemReader(self.directory).read_metadata()
        key = "layer.000000.weight"
        assert len(metadata.state_dict_metadata[key].chunks) == CHUNKS_PER_TENSOR
        yield None


CHUNKS_PER_TENSOR = 100


def _metadata_of(chunks: int) -> Any:
    """Returns what DCP would write for the tensors of `kv-bench open`: 100 rows, each a chunk."""
    import torch
    from torch.distributed.checkpoint import metadata as md
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    size, row = torch.Size([CHUNKS_PER_TENSOR, 16]), torch.Size([1, 16])
    properties = md.TensorProperties(dtype=torch.float32)
    tensors, storage = {}, {}
    for i in range(chunks // CHUNKS_PER_TENSOR):
        key = f"layer.{i:06}.weight"
        offsets = [torch.Size([j, 0]) for j in range(CHUNKS_PER_TENSOR)]
        boxes = [md.ChunkStorageMetadata(offset, row) for offset in offsets]
        tensors[key] = md.TensorStorageMetadata(properties, size, boxes)
        for j, offset in enumerate(offsets):
            place = (i * CHUNKS_PER_TENSOR + j) * 1024
            storage[md.MetadataIndex(key, offset, j)] = _StorageInfo("__0_0.distcp", place, 1024)
    return md.Metadata(tensors, planner_data={}, storage_data=storage)
