"""The libraries that save tensors of torch: DCP, torch.save, safetensors, moonclip."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as md

from common.library import EVERYTHING_STAGED, THREADS, Library, Saving
from common.states import Boxes, Tensors, cut, empty_boxes, empty_like, index_of


def _box_planner(boxes: Boxes) -> Any:
    """Returns a planner that reads these boxes as the ranks of a mesh would."""
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    class BoxPlanner(dcp.DefaultLoadPlanner):
        def create_local_plan(self) -> Any:
            items = []
            for key, box in boxes.items():
                begins = torch.Size(begin for begin, _ in box)
                sizes = torch.Size(end - begin for begin, end in box)
                chunk = md.ChunkStorageMetadata(begins, sizes)
                stored = self.metadata.state_dict_metadata[key]
                items += create_read_items_for_chunk_list(key, stored, [chunk])
            return dcp.planner.LoadPlan(items)

        def lookup_tensor(self, index: Any) -> Any:
            return self.state_dict[index.fqn]

    return BoxPlanner()


class Dcp(Library):
    name = "dcp"
    modules = ("torch.distributed.checkpoint",)
    cannot = {"begin_save_stating": EVERYTHING_STAGED, "stall_1": EVERYTHING_STAGED}
    remark = (
        f"FileSystemWriter(thread_count={THREADS}, sync_files=True), then fsync of the directory, "
        "which it omits; FileSystemReader, which has no threads in this version; async_save with a "
        "DefaultStager that is kept (cached staging memory)"
    )
    _stager: Any = None

    def writer(self, step: int) -> Any:
        return self.lib.FileSystemWriter(self.path(step), thread_count=THREADS, sync_files=True)

    def reader(self, step: int) -> Any:
        return self.lib.FileSystemReader(self.path(step))

    def save(self, step: int, state: Tensors) -> None:
        self.lib.save(state, storage_writer=self.writer(step), no_dist=True)

    replace = save

    def load_into(self, step: int, targets: Tensors, planner: Any = None) -> Tensors:
        self.lib.load(targets, storage_reader=self.reader(step), planner=planner, no_dist=True)
        return targets

    def load(self, step: int, like: Tensors) -> Tensors:
        return self.load_into(step, empty_like(like))

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        return self.load(step, {key: like[key] for key in keys})

    def load_boxes(self, step: int, like: Tensors, boxes: Boxes) -> Tensors:
        return self.load_into(step, empty_boxes(like, boxes), _box_planner(boxes))

    def begin_save(self, step: int, state: Tensors) -> Saving:
        staging = importlib.import_module("torch.distributed.checkpoint.staging")
        gpu = self.device == "cuda"
        options = staging.StagingOptions(gpu, False, gpu, gpu)
        self._stager = self._stager or staging.DefaultStager(options)
        saving = self.lib.async_save(
            state, storage_writer=self.writer(step), async_stager=self._stager, no_dist=True
        )
        # Without a GPU, the stager has no threads: staging is complete when async_save returns.
        staged = saving.staging_completion.result if gpu else lambda: None
        return staged, getattr(saving, "upload_completion", saving).result

    def latest(self) -> int | None:
        found = [int(path.parent.name[5:]) for path in self.folder.glob("step-*/.metadata")]
        return max(found, default=None)


class Torch(Library):
    name = "torch"
    modules = ("torch",)
    suffix = ".pt"
    cannot = dict.fromkeys(("load_keys", "load_boxes"), "reads the complete file: see a full load")
    remark = "torch.save, then fsync of the file and of its directory; torch.load into memory"
    is_mapped: ClassVar[bool] = False

    def save(self, step: int, state: Tensors) -> None:
        torch.save(state, self.path(step))

    def load(self, step: int, like: Tensors) -> Tensors:
        path, device = self.path(step), self.device
        return torch.load(path, mmap=self.is_mapped, weights_only=True, map_location=device)


class TorchMapped(Torch):
    name = "torch mmap"
    reads = "torch"
    is_mapped = True
    cannot = {"save": "differs from torch only in reading", "import": "is torch"}
    remark = "torch.load(mmap=True); boxes are taken from the mapped tensors"

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        mapped = self.load(step, like)
        return {key: mapped[key] for key in keys}

    def load_boxes(self, step: int, like: Tensors, boxes: Boxes) -> Tensors:
        return cut(self.load(step, like), boxes)


class Safetensors(Library):
    name = "safetensors"
    modules = ("safetensors.torch",)
    packages = ("safetensors",)
    suffix = ".safetensors"
    remark = "save_file, then fsync of the file and of its directory; no digests"

    def save(self, step: int, state: Tensors) -> None:
        self.lib.save_file(state, str(self.path(step)))

    replace = save

    def load(self, step: int, like: Tensors) -> Tensors:
        return self.lib.load_file(str(self.path(step)), device=self.device or "cpu")

    def _opened(self, step: int) -> Any:
        from safetensors import safe_open

        return safe_open(str(self.path(step)), framework="pt").__enter__()

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        file = self._opened(step)
        return {key: file.get_tensor(key) for key in keys}

    def load_boxes(self, step: int, like: Tensors, boxes: Boxes) -> Tensors:
        file = self._opened(step)  # of columns, it returns views of the mapped tensors
        return {key: file.get_slice(key)[index_of(box)].contiguous() for key, box in boxes.items()}

    def latest(self) -> int | None:
        return max((int(path.stem[5:]) for path in self.folder.glob("*.safetensors")), default=None)

    @classmethod
    def is_record(cls, path: Path) -> int:
        with open(path, "rb") as file:
            return 8 + int.from_bytes(file.read(8), "little")


class Moonclip(Library):
    name = "moonclip"
    modules = packages = ("moonclip",)
    is_durable = True
    cannot = {"load_boxes": "reads complete tensors", "begin_save_stating": EVERYTHING_STAGED}
    remark = (
        "MoonclipManager with its defaults, which compress without loss (zstd, level 3); durable "
        "saves are save_tensors and flush; tensors view the buffers that load returns"
    )

    def start(self, state: Tensors, saves: bool) -> None:
        self._manager = self.lib.MoonclipManager(str(self.place))

    def save(self, step: int, state: Tensors) -> None:
        self.begin_save(step, state)[1]()

    save_again = save

    def begin_save(self, step: int, state: Tensors) -> Saving:
        self._manager.save_tensors(step=step, tensors=state)
        return lambda: None, self._manager.flush

    def forget(self, step: int) -> None:
        """It has no call that deletes a step."""

    def load(self, step: int, like: Tensors) -> Tensors:
        return _views(self._manager.load(self._id(step)), like)

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        return _views(self._manager.load_tensors(self._id(step), keys), like)

    def latest(self) -> int | None:
        return max((one["step"] for one in self._manager.list_snapshots()), default=None)

    def _id(self, step: int) -> str:
        snapshots = self._manager.list_snapshots()
        return [one["id"] for one in snapshots if one["step"] == step][-1]


def _views(buffers: dict[str, bytearray], like: Tensors) -> Tensors:
    """Tensors of these bytes, with the dtypes and shapes of others."""
    return {
        key: torch.frombuffer(data, dtype=like[key].dtype).reshape(like[key].shape)
        for key, data in buffers.items()
    }
