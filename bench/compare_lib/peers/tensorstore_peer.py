"""TensorStore: one zarr3 array per tensor in an OCDBT database in files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compare_lib.peers.base import (
    NO_INCREMENT,
    NOT_OF_DCP,
    Peer,
    Slices,
    Steps,
    empty_boxes,
    time_import,
)
from compare_lib.states import State, Tensors

CHUNK_BYTES = 8 << 20
OPEN_AT_ONCE = 1_000


def _array(tensor: Any) -> Any:
    """Returns a numpy array of TensorStore's type that shares the tensor's memory."""
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor(array: Any) -> Any:
    import numpy as np
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _chunk_shape(tensor: Any) -> tuple[int, ...]:
    """Returns the shape of a chunk: as many complete rows as fit."""
    if tensor.dim() == 0:
        return ()
    row_bytes = tensor.nbytes // tensor.shape[0]
    return (max(1, min(tensor.shape[0], CHUNK_BYTES // row_bytes)), *tensor.shape[1:])


def _batches(keys: Iterable[str]) -> Iterable[list[str]]:
    keys = list(keys)
    return (keys[i : i + OPEN_AT_ONCE] for i in range(0, len(keys), OPEN_AT_ONCE))


class TensorStorePeer(Peer):
    name = "tensorstore"
    modules = ("tensorstore", "ml_dtypes")
    package = "tensorstore"
    cannot = {
        "second_save": NO_INCREMENT,
        "save_async": "has no call that copies the state and then returns",
        "save_async_stated": "has no call that copies the state and then returns",
        "small_saves": "is not compared with a small state",
        "dcp_saves_and_loads": NOT_OF_DCP,
        "open_metadata": "finds a tensor's chunks by name: there is no list of chunks to load",
    }
    remarks = (
        "zarr3 in OCDBT on files with their default sync, uncompressed, all arrays in one "
        f"transaction; chunks of up to {CHUNK_BYTES >> 20} MiB of complete rows; no cache; "
        f"{OPEN_AT_ONCE:,} arrays at once; no digests",
    )

    def _open(self, key: str, context: Any, **options: Any) -> Any:
        import tensorstore as ts

        base = f"file://{self.directory}/store/"
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{key}/"}
        return ts.open({"driver": "zarr3", "kvstore": kvstore}, context=context, **options)

    def _context(self) -> Any:
        import tensorstore as ts

        return ts.Context({"cache_pool": {"total_bytes_limit": 0}})

    def import_package(self) -> Steps:
        yield from time_import("tensorstore")

    def save(self, state: State) -> Steps:
        import tensorstore as ts

        context = self._context()
        yield
        transaction = ts.Transaction()
        for keys in _batches(state.tensors):
            opened = [
                self._open(
                    key, context, create=True, transaction=transaction,
                    dtype=ts.dtype(_array(state.tensors[key]).dtype),
                    shape=state.tensors[key].shape,
                    chunk_layout=ts.ChunkLayout(chunk_shape=_chunk_shape(state.tensors[key])),
                )
                for key in keys
            ]  # fmt: skip
            written = [
                array.result().write(
                    _array(state.tensors[key]), can_reference_source_data_indefinitely=True
                )
                for key, array in zip(keys, opened)
            ]
            for one in written:
                one.copy.result()
        transaction.commit_sync()
        yield None

    def load_new(self, state: State) -> Steps:
        context = self._context()
        yield
        yield self._read(list(state.tensors), context)

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        context = self._context()
        yield
        yield self._read(keys, context)

    def _read(self, keys: list[str], context: Any) -> Tensors:
        tensors = {}
        for batch in _batches(keys):
            opened = [self._open(key, context, open=True) for key in batch]
            reads = [array.result().read() for array in opened]
            tensors |= {key: _tensor(read.result()) for key, read in zip(batch, reads)}
        return tensors

    def load_existing(self, state: State, targets: Tensors) -> Steps:
        context = self._context()
        whole = {key: [(0, size) for size in tensor.shape] for key, tensor in targets.items()}
        yield
        self._read_into(targets, whole, context)
        yield targets

    def load_slices(self, state: State, slices: Slices) -> Steps:
        context = self._context()
        yield
        targets = empty_boxes(state, slices)
        self._read_into(targets, slices, context)
        yield targets

    def _read_into(self, targets: Tensors, slices: Slices, context: Any) -> None:
        import tensorstore as ts

        for batch in _batches(targets):
            opened = [self._open(key, context, open=True) for key in batch]
            copies = []
            for key, array in zip(batch, opened):
                box = tuple(slice(begin, end) for begin, end in slices[key])
                # Boxes keep their original indices; those of the target start at 0.
                source = array.result()[box][ts.d[:].translate_to[0]]
                copies.append(ts.array(_array(targets[key]), copy=False).write(source))
            for copy in copies:
                copy.result()
