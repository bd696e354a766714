"""Loads into CUDA tensors."""

from __future__ import annotations

import torch
from gpu_machine import GpuTest, machine, random_bits, to_gpu

MIB = 1 << 20


class Loads(GpuTest):
    def test_a_state_is_filled_where_it_is(self):
        host = {str(dtype): random_bits(dtype, (7, 1237)) for dtype in machine.dtypes}
        store = self.open_store()
        store.save(1, host)
        state = {name: machine.empty(tuple(t.shape), t.dtype) for name, t in host.items()}
        addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
        store.load(state)
        for name, tensor in host.items():
            self.assertEqual(state[name].data_ptr(), addresses[name])
            self.assert_same_bits(state[name], tensor, name)

    def test_strided_targets_leave_what_lies_between(self):
        values = torch.randn(1000, 300)
        base = torch.full((1000, 600), -1.0)
        store = self.open_store()
        store.save(1, {"t": values})
        places = [((1000, 300), (600, 2), 0), ((1000, 600), (600, 1), 0)]
        target, whole = machine.views(base, places)
        store.load({"t": target})
        base[:, ::2] = values
        self.assert_same_bits(whole, base)

    def test_a_load_follows_a_stream_that_is_current(self):
        store = self.open_store()
        store.save(1, {"t": torch.ones(MIB)})
        target, zeros = to_gpu(torch.full((MIB,), 7.0)), to_gpu(torch.zeros(MIB))
        with machine.busy_stream():
            machine.enqueue_copy(target, zeros)
            store.load({"t": target})
        self.assert_same_bits(target, torch.ones(MIB))

    def test_read_makes_tensors_on_the_device(self):
        values = torch.randn(3, MIB)
        store = self.open_store()
        store.save(1, {"t": values})
        read = store.read(device="cuda")["t"]
        self.assertEqual(read.device, torch.device("cuda:0"))
        self.assert_same_bits(read, values)

    def test_what_was_loaded_is_unchanged_to_the_next_save(self):
        store = self.open_store()
        store.save(1, {"t": torch.randn(3, MIB)})
        target = machine.empty((3, MIB), torch.float32)
        store.load({"t": target})
        report = store.save(2, {"t": target})
        self.assertEqual((report.device_bytes, report.written_bytes), (0, 0))
