"""safetensors: one file, which is memory-mapped for reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compare_lib.peers.base import (
    NO_INCREMENT,
    NOT_OF_DCP,
    Peer,
    Slices,
    Steps,
    sync_file,
    time_import,
)
from compare_lib.states import State


class SafetensorsPeer(Peer):
    name = "safetensors"
    modules = ("safetensors.torch",)
    package = "safetensors"
    cannot = {
        "load_existing": "can only create new tensors",
        "second_save": NO_INCREMENT,
        "save_async": "has no asynchronous save",
        "save_async_stated": "has no asynchronous save",
        "dcp_saves_and_loads": NOT_OF_DCP,
        "open_metadata": "stores complete tensors, not chunks",
    }
    remarks = ("save_file, then fsync of the file and of its directory; no digests",)

    @property
    def _path(self) -> str:
        return str(self.directory / "state.safetensors")

    def import_package(self) -> Steps:
        yield from time_import("safetensors.torch")

    def save(self, state: State) -> Steps:
        from safetensors.torch import save_file

        yield
        save_file(state.tensors, self._path)
        sync_file(Path(self._path))
        yield None

    def small_saves(self, state: State) -> Callable[[int], None]:
        from safetensors.torch import save_file

        def save(number: int) -> None:
            path = self.scratch / f"{number}.safetensors"
            save_file(state.tensors, str(path))
            sync_file(path)

        return save

    def load_new(self, state: State) -> Steps:
        from safetensors.torch import load_file

        yield
        yield load_file(self._path)

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        from safetensors import safe_open

        yield
        file = safe_open(self._path, framework="pt").__enter__()
        yield {key: file.get_tensor(key) for key in keys}

    def load_slices(self, state: State, slices: Slices) -> Steps:
        from safetensors import safe_open

        yield
        file = safe_open(self._path, framework="pt").__enter__()
        loaded = {}
        for key, ranges in slices.items():
            box = tuple(slice(begin, end) for begin, end in ranges)
            loaded[key] = file.get_slice(key)[box]
        yield loaded
