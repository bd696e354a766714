"""torch.save and torch.load: into memory, and by mapping the file."""

from __future__ import annotations

from collections.abc import Callable

from compare_lib.peers.base import (
    NO_INCREMENT,
    NOT_OF_DCP,
    Peer,
    Slices,
    Steps,
    cut,
    sync_file,
    time_import,
)
from compare_lib.states import State

READS_ALL = "reads the complete file: see the full load"


class TorchPeer(Peer):
    name = "torch"
    package = "torch"
    cannot = {
        "load_existing": "can only create new tensors",
        "load_keys": READS_ALL,
        "load_slices": READS_ALL,
        "second_save": NO_INCREMENT,
        "save_async": "has no asynchronous save",
        "save_async_stated": "has no asynchronous save",
        "dcp_saves_and_loads": NOT_OF_DCP,
        "open_metadata": "stores complete tensors, not chunks",
    }
    remarks = ("torch.save, then fsync of the file and of its directory; torch.load into memory",)

    def import_package(self) -> Steps:
        yield from time_import("torch")

    def save(self, state: State) -> Steps:
        import torch

        path = self.directory / "state.pt"
        yield
        torch.save(state.tensors, path)
        sync_file(path)
        yield None

    def small_saves(self, state: State) -> Callable[[int], None]:
        import torch

        def save(number: int) -> None:
            path = self.scratch / f"{number}.pt"
            torch.save(state.tensors, path)
            sync_file(path)

        return save

    def load_new(self, state: State) -> Steps:
        import torch

        yield
        yield torch.load(self.directory / "state.pt", weights_only=True)


class TorchMapped(Peer):
    name = "torch mmap"
    saved_by = "torch"
    cannot = TorchPeer.cannot | dict.fromkeys(
        ("save", "small_saves", "import_package"), "differs from torch only in reading"
    )
    remarks = ("torch.load(mmap=True); slices are taken from the mapped tensors",)

    def load_new(self, state: State) -> Steps:
        import torch

        yield
        yield torch.load(self.directory / "state.pt", mmap=True, weights_only=True)

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        import torch

        yield
        mapped = torch.load(self.directory / "state.pt", mmap=True, weights_only=True)
        yield {key: mapped[key] for key in keys}

    def load_slices(self, state: State, slices: Slices) -> Steps:
        import torch

        yield
        mapped = torch.load(self.directory / "state.pt", mmap=True, weights_only=True)
        yield {key: cut(mapped[key], ranges) for key, ranges in slices.items()}
