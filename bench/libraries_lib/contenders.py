"""The libraries, each used as its documentation shows, with a step per save.

Each contender works in a separate process. `prepare` converts arrays to what the library saves, and
is not measured.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from libraries_lib.states import Arrays

Boxes = dict[str, tuple[slice, ...]]
RECORD_BYTES = 256 << 10


class Contender:
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Whose versions are stated."""
    remark: ClassVar[str]
    """How it is used."""
    loads_boxes: ClassVar[bool] = True
    uses_jax: ClassVar[bool] = False
    """Whether `save_rows` and `load_columns` save and load sharded arrays of JAX."""
    replaces: ClassVar[bool] = True
    """Whether there is a call that replaces a checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Imports the library."""
        self.folder = folder

    def prepare(self, arrays: Arrays) -> Any:
        raise NotImplementedError

    def save(self, step: int, state: Any, changed: list[str] | None, replace: bool) -> None:
        """Saves a step. `changed` are the keys that differ from the step before, for libraries to
        which the caller states it; None if all of them may."""
        raise NotImplementedError

    def latest(self) -> int | None:
        """The newest step that the library considers complete."""
        raise NotImplementedError

    def load(self, step: int, state: Any) -> Any:
        """Loads a step into new memory; `state` has its structure."""
        raise NotImplementedError

    def load_keys(self, step: int, state: Any, keys: list[str]) -> Any:
        raise NotImplementedError

    def load_boxes(self, step: int, state: Any, boxes: Boxes) -> Any:
        raise NotImplementedError

    def save_rows(self, step: int, arrays: Arrays) -> None:
        """Saves arrays of JAX whose rows are divided among four devices."""
        raise NotImplementedError

    def load_columns(self, step: int, arrays: Arrays) -> Any:
        """Loads them with columns that are divided among the devices."""
        raise NotImplementedError

    @classmethod
    def is_record(cls, path: Path) -> bool:
        """Whether a file describes the checkpoint, and contains no values of tensors."""
        return path.stat().st_size <= RECORD_BYTES

    def arrays(self, loaded: Any) -> Arrays:
        """What was loaded as arrays, to compare it."""
        return {key: np.asarray(value) for key, value in loaded.items()}


def _sharding(axis: int) -> Any:
    """Divides an axis among four devices of JAX."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((4,), ("data",))
    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, "data"))


def _tensors(arrays: Arrays) -> dict[str, Any]:
    import torch

    return {key: torch.from_numpy(array) for key, array in arrays.items()}


class Cairn(Contender):
    title = "Cairn"
    packages = ("torch",)
    remark = (
        "`store.save` and `store.read` with their defaults; the store remains open for saves. "
        "The arrays of JAX are saved and loaded by `cairn.jax`."
    )
    uses_jax = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cairn = importlib.import_module("cairn")
        importlib.import_module("torch")  # which Cairn imports when it is needed
        self._store: Any = None

    def prepare(self, arrays: Arrays) -> Any:
        return _tensors(arrays)

    def save(self, step: int, state: Any, changed: list[str] | None, replace: bool) -> None:
        if self._store is None:
            self._store = self._cairn.open(self.folder, mode="a", take_over=True)
        self._store.save(step, state, overwrite=replace)

    def _open(self) -> Any:
        return self._cairn.open(self.folder)

    def latest(self) -> int | None:
        with self._open() as store:
            return max(store.steps(), default=None)

    def load(self, step: int, state: Any) -> Any:
        with self._open() as store:
            return store.read(step=step, flat=True)

    def load_keys(self, step: int, state: Any, keys: list[str]) -> Any:
        with self._open() as store:
            return store.read(keys, step=step, flat=True)

    def load_boxes(self, step: int, state: Any, boxes: Boxes) -> Any:
        with self._open() as store:
            return store.read_slices(boxes, step=step)

    def save_rows(self, step: int, arrays: Arrays) -> None:
        import cairn.jax
        import jax

        with self._cairn.open(self.folder, mode="a") as store:
            cairn.jax.save(store, step, jax.device_put(arrays, _sharding(0)))

    def load_columns(self, step: int, arrays: Arrays) -> Any:
        import cairn.jax
        import jax

        template = {
            key: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=_sharding(1))
            for key, array in arrays.items()
        }
        return jax.block_until_ready(cairn.jax.load(self.folder, template, step=step))


class Dcp(Contender):
    title = "DCP"
    packages = ("torch",)
    remark = (
        "`dcp.save` and `dcp.load` with `FileSystemWriter` and `FileSystemReader`, in one process, "
        "with their defaults; a directory per step."
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._dcp = importlib.import_module("torch.distributed.checkpoint")
        importlib.import_module("compare_lib.peers.dcp_peer")

    def prepare(self, arrays: Arrays) -> Any:
        return _tensors(arrays)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06}"

    def save(self, step: int, state: Any, changed: list[str] | None, replace: bool) -> None:
        writer = self._dcp.FileSystemWriter(self._path(step))
        self._dcp.save(state, storage_writer=writer, no_dist=True)

    def latest(self) -> int | None:
        found = [int(path.parent.name[5:]) for path in self.folder.glob("step-*/.metadata")]
        return max(found, default=None)

    def load(self, step: int, state: Any) -> Any:
        import torch

        target = {key: torch.empty_like(tensor) for key, tensor in state.items()}
        reader = self._dcp.FileSystemReader(self._path(step))
        self._dcp.load(target, storage_reader=reader, no_dist=True)
        return target

    def load_keys(self, step: int, state: Any, keys: list[str]) -> Any:
        return self.load(step, {key: state[key] for key in keys})

    def load_boxes(self, step: int, state: Any, boxes: Boxes) -> Any:
        import torch
        from compare_lib.peers.dcp_peer import box_planner

        target = {key: torch.empty_like(state[key][box]) for key, box in boxes.items()}
        ranges = {
            key: [s.indices(size)[:2] for s, size in zip(box, state[key].shape)]
            for key, box in boxes.items()
        }
        reader = self._dcp.FileSystemReader(self._path(step))
        planner = box_planner(ranges)
        self._dcp.load(target, storage_reader=reader, planner=planner, no_dist=True)
        return target


class Safetensors(Contender):
    title = "safetensors"
    packages = ("safetensors",)
    remark = "`save_file`, `load_file` and `safe_open`; a file per step."

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._torch = importlib.import_module("safetensors.torch")

    def prepare(self, arrays: Arrays) -> Any:
        return _tensors(arrays)

    def _path(self, step: int) -> str:
        return str(self.folder / f"step-{step:06}.safetensors")

    def save(self, step: int, state: Any, changed: list[str] | None, replace: bool) -> None:
        self._torch.save_file(state, self._path(step))

    def latest(self) -> int | None:
        found = [int(path.stem[5:]) for path in self.folder.glob("step-*.safetensors")]
        return max(found, default=None)

    def load(self, step: int, state: Any) -> Any:
        return self._torch.load_file(self._path(step))

    def load_keys(self, step: int, state: Any, keys: list[str]) -> Any:
        from safetensors import safe_open

        with safe_open(self._path(step), framework="pt") as file:
            return {key: file.get_tensor(key) for key in keys}

    def load_boxes(self, step: int, state: Any, boxes: Boxes) -> Any:
        from safetensors import safe_open

        with safe_open(self._path(step), framework="pt") as file:
            return {key: file.get_slice(key)[box] for key, box in boxes.items()}


class TensorStore(Contender):
    title = "TensorStore, OCDBT"
    packages = ("tensorstore",)
    remark = (
        "Zarr 3 arrays without compression, in chunks of up to 8 MiB of complete rows, in one "
        "OCDBT database for all steps; an atomic transaction per save. If a part has changed, "
        "only the arrays of this part are written, because the caller knows it."
    )
    replaces = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ts = importlib.import_module("tensorstore")

    def prepare(self, arrays: Arrays) -> Any:
        return arrays

    def _context(self) -> Any:
        return self._ts.Context({"cache_pool": {"total_bytes_limit": 0}})

    def _database(self, path: str = "") -> dict[str, Any]:
        return {"driver": "ocdbt", "base": f"file://{self.folder}/", "path": path}

    def _open(self, key: str, context: Any, **options: Any) -> Any:
        spec = {"driver": "zarr3", "kvstore": self._database(f"{key}/")}
        return self._ts.open(spec, context=context, **options)

    def _create(self, key: str, array: np.ndarray, **options: Any) -> Any:
        row_bytes = array.nbytes // array.shape[0]
        rows = max(1, min(array.shape[0], (8 << 20) // row_bytes))
        layout = self._ts.ChunkLayout(chunk_shape=(rows, *array.shape[1:]))
        return self._open(
            key, create=True, open=True, dtype=array.dtype, shape=array.shape, chunk_layout=layout,
            **options,
        )  # fmt: skip

    def save(self, step: int, state: Any, changed: list[str] | None, replace: bool) -> None:
        context = self._context()
        keys = state.keys() if changed is None else changed
        with self._ts.Transaction(atomic=True) as transaction:
            opened = {
                key: self._create(key, state[key], context=context, transaction=transaction)
                for key in keys
            }
            written = [
                array.result().write(state[key], can_reference_source_data_indefinitely=True).copy
                for key, array in opened.items()
            ]
            for each in written:
                each.result()
            database = self._ts.KvStore.open(self._database(), context=context).result()
            database.with_transaction(transaction)["step"] = str(step).encode()

    def latest(self) -> int | None:
        database = self._ts.KvStore.open(self._database()).result()
        found = database.read("step").result()
        return int(found.value) if found.state == "value" else None

    def load(self, step: int, state: Any) -> Any:
        return self.load_keys(step, state, list(state))

    def load_keys(self, step: int, state: Any, keys: list[str]) -> Any:
        return self.load_boxes(step, state, {key: () for key in keys})

    def load_boxes(self, step: int, state: Any, boxes: Boxes) -> Any:
        context = self._context()
        opened = {key: self._open(key, context, open=True) for key in boxes}
        reads = {key: opened[key].result()[box].read() for key, box in boxes.items()}
        return {key: read.result() for key, read in reads.items()}


class Orbax(Contender):
    title = "Orbax, OCDBT"
    packages = ("orbax-checkpoint", "tensorstore", "jax")
    remark = (
        "`CheckpointManager` without asynchronous saves, with `PyTreeCheckpointHandler` and its "
        "defaults, which compress with zstd; arrays of JAX on one CPU device. The replacement is "
        "`Checkpointer.save(..., force=True)`."
    )
    use_ocdbt: ClassVar[bool] = True
    loads_boxes = False
    uses_jax = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._jax = importlib.import_module("jax")
        self._ocp = importlib.import_module("orbax.checkpoint")
        self._opened: Any = None

    def prepare(self, arrays: Arrays) -> Any:
        return {key: self._jax.device_put(array) for key, array in arrays.items()}

    def _handler(self) -> Any:
        return self._ocp.PyTreeCheckpointHandler(use_ocdbt=self.use_ocdbt)

    def _manager(self) -> Any:
        if self._opened is None:
            options = self._ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
            self._opened = self._ocp.CheckpointManager(
                self.folder, options=options, item_handlers=self._handler()
            )
        return self._opened

    def save(self, step: int, state: Any, changed: list[str] | None, replace: bool) -> None:
        if replace:
            with self._ocp.Checkpointer(self._handler()) as checkpointer:
                arguments = self._ocp.args.PyTreeSave(state)
                checkpointer.save(self.folder / str(step) / "default", arguments, force=True)
            return
        self._manager().save(step, args=self._ocp.args.PyTreeSave(state))
        self._manager().wait_until_finished()

    def latest(self) -> int | None:
        return self._manager().latest_step()

    def _restore(self, step: int, state: Any, sharding: Any = None, **options: Any) -> Any:
        one = self._jax.sharding.SingleDeviceSharding(self._jax.devices()[0])
        how = {
            key: self._ocp.ArrayRestoreArgs(sharding=sharding or one, global_shape=array.shape)
            for key, array in state.items()
        }
        arguments = self._ocp.args.PyTreeRestore(item=state, restore_args=how, **options)
        return self._manager().restore(step, args=arguments)

    def load(self, step: int, state: Any) -> Any:
        return self._jax.block_until_ready(self._restore(step, state))

    def load_keys(self, step: int, state: Any, keys: list[str]) -> Any:
        wanted = {key: state[key] for key in keys}
        return self._jax.block_until_ready(self._restore(step, wanted, partial_restore=True))

    def save_rows(self, step: int, arrays: Arrays) -> None:
        self.save(step, self._jax.device_put(arrays, _sharding(0)), None, False)

    def load_columns(self, step: int, arrays: Arrays) -> Any:
        return self._jax.block_until_ready(self._restore(step, arrays, _sharding(1)))


class OrbaxFiles(Orbax):
    title = "Orbax, without OCDBT"
    remark = "As above with `use_ocdbt=False`: a folder per array."
    use_ocdbt = False

    @classmethod
    def is_record(cls, path: Path) -> bool:
        is_chunk = path.name.replace(".", "").isdigit()
        return not is_chunk and super().is_record(path)


CONTENDERS: dict[str, type[Contender]] = {
    "cairn": Cairn,
    "dcp": Dcp,
    "safetensors": Safetensors,
    "tensorstore": TensorStore,
    "orbax": Orbax,
    "orbax-files": OrbaxFiles,
}


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
