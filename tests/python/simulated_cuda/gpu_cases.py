"""The tests of gpu/ on the simulated runtime, where they run without a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from device_memory import _CODES, Memory, Stream, blocked, control, empty, to_host

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import gpu_machine


class SimulatedGpu:
    """A simulated gpu_machine.Gpu, on which torch computes nothing."""

    computes = False
    dtypes = list(_CODES)

    def why_not(self) -> None:
        return None

    def views(self, base, places):
        storage = base.untyped_storage()
        memory = Memory(storage.nbytes(), 0)
        control.Poke(memory.address, storage.data_ptr(), storage.nbytes())
        return [
            memory.tensor(base.dtype, shape, strides, offset * base.element_size())
            for shape, strides, offset in places
        ]

    def empty(self, shape, dtype):
        return empty(shape, dtype)

    def to_host(self, tensor):
        return to_host(tensor)

    def enqueue_copy(self, target, source):
        torch.cuda.current_stream(0).copy(target, source)

    @contextmanager
    def busy_stream(self) -> Iterator[Stream]:
        stream = Stream(0)
        with mock.patch("torch.cuda.current_stream", lambda device=0: stream):
            with blocked(stream) as unblock:
                timer = threading.Timer(0.5, unblock)
                timer.start()
                yield stream
                timer.join()
            stream.synchronize()


gpu_machine.use(SimulatedGpu())

from test_gpu_dcp import *
from test_gpu_loads import *
from test_gpu_places import *
from test_gpu_saves import *
