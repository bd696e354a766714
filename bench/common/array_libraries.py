"""The libraries that save arrays: TensorStore, and Orbax with JAX."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.library import Library
from common.states import Boxes, Tensors, empty_boxes, index_of

CHUNK_BYTES = 8 << 20
OPEN_AT_ONCE = 1_000


def array_of(tensor: torch.Tensor) -> Any:
    """Returns a numpy array that shares the tensor's memory, with a type that JAX has."""
    if tensor.dtype == torch.bfloat16:
        bfloat16 = importlib.import_module("ml_dtypes").bfloat16
        return tensor.view(torch.uint16).numpy().view(bfloat16)
    return tensor.numpy()


def tensor_of(array: Any) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _chunk_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape of a chunk: as many complete rows as fit."""
    if tensor.dim() == 0:
        return ()
    row_bytes = tensor.nbytes // tensor.shape[0]
    return (max(1, min(tensor.shape[0], CHUNK_BYTES // row_bytes)), *tensor.shape[1:])


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    keys = list(keys)
    return (keys[i : i + OPEN_AT_ONCE] for i in range(0, len(keys), OPEN_AT_ONCE))


class TensorStore(Library):
    """Has one checkpoint, which each save replaces; `step` is a key of its database."""

    name = "tensorstore"
    modules = ("tensorstore", "ml_dtypes")
    packages = ("tensorstore",)
    is_durable = True
    cannot = {"replace": "is not compared with replaced checkpoints"}
    remark = (
        "zarr3 in OCDBT with its default sync, uncompressed, all arrays in one atomic transaction; "
        f"chunks of up to {CHUNK_BYTES >> 20} MiB of complete rows; no cache; {OPEN_AT_ONCE:,} "
        "arrays at once; no digests"
    )

    def start(self, state: Tensors, saves: bool) -> None:
        self._context = self.lib.Context({"cache_pool": {"total_bytes_limit": 0}, **self.limits()})

    def limits(self) -> dict[str, Any]:
        return {}

    def base(self) -> Any:
        return f"file://{self.folder}/"

    def _open(self, key: str, **options: Any) -> Any:
        kvstore = {"driver": "ocdbt", "base": self.base(), "path": f"{key}/"}
        spec = {"driver": "zarr3", "kvstore": kvstore}
        return self.lib.open(spec, context=self._context, open=True, **options)

    def _database(self) -> Any:
        spec = {"driver": "ocdbt", "base": self.base()}
        return self.lib.KvStore.open(spec, context=self._context).result()

    def _create(self, key: str, tensor: torch.Tensor, transaction: Any) -> Any:
        layout = self.lib.ChunkLayout(chunk_shape=_chunk_shape(tensor))
        return self._open(
            key, create=True, transaction=transaction, dtype=self.lib.dtype(array_of(tensor).dtype),
            shape=tensor.shape, chunk_layout=layout,
        )  # fmt: skip

    def save(self, step: int, state: Tensors) -> None:
        with self.lib.Transaction(atomic=True) as transaction:
            for keys in _batches(state):
                opened = [self._create(key, state[key], transaction) for key in keys]
                written = [
                    array.result().write(
                        array_of(state[key]), can_reference_source_data_indefinitely=True
                    )
                    for key, array in zip(keys, opened)
                ]
                for one in written:
                    one.copy.result()
            self._database().with_transaction(transaction)["step"] = str(step).encode()

    def load(self, step: int, like: Tensors) -> Tensors:
        return self.load_keys(step, like, list(like))

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        tensors = {}
        for batch in _batches(keys):
            opened = [self._open(key) for key in batch]
            reads = [array.result().read() for array in opened]
            tensors |= {key: tensor_of(read.result()) for key, read in zip(batch, reads)}
        return tensors

    def load_into(self, step: int, targets: Tensors) -> None:
        whole = {key: [(0, size) for size in tensor.shape] for key, tensor in targets.items()}
        self._read_into(targets, whole)

    def load_boxes(self, step: int, like: Tensors, boxes: Boxes) -> Tensors:
        targets = empty_boxes(like, boxes)
        self._read_into(targets, boxes)
        return targets

    def _read_into(self, targets: Tensors, boxes: Boxes) -> None:
        for batch in _batches(targets):
            opened = [self._open(key) for key in batch]
            copies = []
            for key, array in zip(batch, opened):
                # Boxes keep their original indices; the target's indices start at 0.
                source = array.result()[index_of(boxes[key])][self.lib.d[:].translate_to[0]]
                target = self.lib.array(array_of(targets[key]), copy=False)
                copies.append(target.write(source))
            for copy in copies:
                copy.result()

    def latest(self) -> int | None:
        found = self._database().read("step").result()
        return int(found.value) if found.state == "value" else None


class Orbax(Library):
    name = "orbax"
    modules = ("orbax.checkpoint", "jax", "ml_dtypes")
    packages = ("orbax-checkpoint", "jax")
    cannot = {"load_boxes": "loads parts of arrays by devices and processes of JAX"}
    remark = (
        "CheckpointManager without asynchronous saves, with PyTreeCheckpointHandler and its "
        "defaults, which compress with zstd; arrays of JAX on one CPU device; a replacement is "
        "Checkpointer.save(force=True)"
    )

    def start(self, state: Tensors, saves: bool) -> None:
        self._jax = importlib.import_module("jax")
        options = self.lib.CheckpointManagerOptions(enable_async_checkpointing=False)
        self._manager = self.lib.CheckpointManager(
            self.folder, options=options, item_handlers=self.lib.PyTreeCheckpointHandler()
        )

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def prepare(self, state: Tensors) -> Any:
        return {key: self._jax.device_put(array_of(tensor)) for key, tensor in state.items()}

    def save(self, step: int, state: Any) -> None:
        self._manager.save(step, args=self.lib.args.PyTreeSave(state))
        self._manager.wait_until_finished()

    def replace(self, step: int, state: Any) -> None:
        with self.lib.Checkpointer(self.lib.PyTreeCheckpointHandler()) as checkpointer:
            arguments = self.lib.args.PyTreeSave(state)
            checkpointer.save(self.path(step) / "default", arguments, force=True)

    def load(self, step: int, like: Tensors, **options: Any) -> Tensors:
        one = self._jax.sharding.SingleDeviceSharding(self._jax.devices()[0])
        shapes = {
            key: self._jax.ShapeDtypeStruct(tensor.shape, array_of(tensor).dtype, sharding=one)
            for key, tensor in like.items()
        }
        how = self.lib.checkpoint_utils.construct_restore_args(shapes)
        arguments = self.lib.args.PyTreeRestore(item=shapes, restore_args=how, **options)
        loaded = self._jax.block_until_ready(self._manager.restore(step, args=arguments))
        return {key: tensor_of(np.asarray(array)) for key, array in loaded.items()}

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        return self.load(step, {key: like[key] for key in keys}, partial_restore=True)

    def latest(self) -> int | None:
        return self._manager.latest_step()
