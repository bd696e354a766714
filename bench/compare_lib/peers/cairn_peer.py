"""Cairn itself: reading into memory, and mapping its segments."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from typing import Any

from compare_lib.peers.base import KV_BENCH, Finish, Peer, Slices, Steps, time_import
from compare_lib.rank_jobs import RanksOfDcp
from compare_lib.small_dcp import save_and_load
from compare_lib.states import State, Tensors


class CairnPeer(RanksOfDcp, Peer):
    name = "cairn"
    storage = "cairn"
    is_direct = True
    modules = ("cairn",)
    package = None  # not installed: the version of the working tree is shown
    remarks = ("every byte that is read is verified with its digest",)

    def _open(self, mode: str = "r") -> Any:
        import cairn

        # Nobody reads the steps that are deleted, and their files would fill the disk.
        return cairn.open(self.directory / "store", mode=mode, grace=0)

    def save(self, state: State) -> Steps:
        store = self._open("a")
        yield
        store.save(1, state.tensors)
        yield None
        store.close()

    def load_new(self, state: State) -> Steps:
        import cairn  # noqa: F401

        yield
        yield self._open().read(flat=True)

    def load_existing(self, state: State, targets: Tensors) -> Steps:
        import cairn  # noqa: F401

        yield
        self._open().load(targets)
        yield targets

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        import cairn  # noqa: F401

        yield
        yield self._open().read(keys, flat=True)

    def load_slices(self, state: State, slices: Slices) -> Steps:
        import cairn  # noqa: F401

        yield
        yield self._open().read_slices(slices)

    def second_save(self, state: State, keys: list[str]) -> Steps:
        store = self._open("a")
        yield
        store.save(2, state.tensors)
        yield lambda: store.read(step=2, flat=True)
        store.delete(2)
        store.close()

    def save_async(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        return self._stall(state)

    def save_async_stated(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        # The first save has no base, so it must not state anything.
        return self._stall(state, unchanged=["**", *(f"!{key}" for key in keys)])

    def _stall(self, state: State, **options: Any) -> Callable[[], Finish]:
        import cairn

        # Nobody reads the steps that are deleted, and their files would fill the disk.
        store = cairn.open(self.scratch / "store", mode="a", grace=0)
        steps = itertools.count(1)

        def stall() -> Finish:
            step = next(steps)
            handle = store.save_async(step, state.tensors, **(options if step > 1 else {}))
            handle.wait_staged()

            def finish() -> None:
                handle.result()
                if step > 1:
                    store.delete(step - 1)

            return finish

        return stall

    def small_saves(self, state: State) -> Callable[[int], None]:
        import cairn

        store = cairn.open(self.scratch / "store", mode="a")
        return lambda number: store.save(number, state.tensors)

    def dcp_saves_and_loads(self, state: State) -> Steps:
        from cairn.dcp import CairnReader, CairnWriter

        path = str(self.scratch / "store")
        return save_and_load(
            state,
            writer=lambda number: CairnWriter(path, step=number),
            reader=lambda number: CairnReader(path, step=number),
        )

    def import_package(self) -> Steps:
        yield from time_import("cairn")

    def make_metadata(self, chunks: int) -> None:
        command = [KV_BENCH, "open", "--chunks", str(chunks), "--dir", self.directory]
        subprocess.run([*command, "--repeat", "1"], check=True)

    def open_metadata(self, chunks: int) -> Steps:
        import cairn

        yield
        store = cairn.open(self.directory / f"open-{chunks}")
        store.read("layer.000000.weight", flat=True)
        yield None


class CairnMapped(Peer):
    name = "cairn mmap"
    modules = ("cairn",)
    saved_by = "cairn"
    cannot = dict.fromkeys(
        ("save", "second_save", "save_async", "save_async_stated", "small_saves",
         "dcp_saves_and_loads", "load_existing", "load_slices", "open_metadata", "import_package",
         "ranks_save", "ranks_load"),
        "differs from cairn only in reading",
    )
    remarks = ("read(mmap=True): digests are verified, nothing is copied",)

    def load_new(self, state: State) -> Steps:
        import cairn

        yield
        yield cairn.open(self.directory / "store").read(flat=True, mmap=True)

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        import cairn

        yield
        yield cairn.open(self.directory / "store").read(keys, flat=True, mmap=True)


class CairnLazy(Peer):
    name = "cairn lazy"
    modules = ("cairn",)
    saved_by = "cairn"
    cannot = CairnMapped.cannot | {"load_keys": "see cairn mmap"}
    remarks = (
        'read(mmap=True, verify="lazy"): as cairn mmap, but digests are verified in the background '
        "after the measured time",
    )

    def load_new(self, state: State) -> Steps:
        import cairn

        yield
        store = cairn.open(self.directory / "store")
        yield store.read(flat=True, mmap=True, verify="lazy")
        store.wait_verified()
