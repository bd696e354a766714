"""Saves of CUDA tensors."""

from __future__ import annotations

import torch
from gpu_machine import GpuTest, machine, random_bits, to_gpu

import cairn

MIB = 1 << 20


class Saves(GpuTest):
    def test_cairn_reaches_the_device(self):
        self.assertIsNone(cairn._cairn.device_problem())

    def test_every_dtype_comes_back_with_the_same_bits(self):
        host = {str(dtype): random_bits(dtype, (7, 1237)) for dtype in machine.dtypes}
        store = self.open_store()
        store.save(1, {name: to_gpu(tensor) for name, tensor in host.items()})
        read = store.read()
        for name, tensor in host.items():
            self.assert_same_bits(read[name], tensor, name)

    def test_strided_tensors_come_back(self):
        base = torch.randn(1000, 300)
        places = {
            "transposed": ((300, 1000), (1, 300), 0),
            "columns": ((1000, 10), (300, 1), 10),
            "steps": ((334, 43), (900, 7), 0),
        }
        tensors = machine.views(base, list(places.values()))
        store = self.open_store()
        store.save(1, dict(zip(places, tensors)))
        read = store.read()
        for name, place in places.items():
            self.assert_same_bits(read[name], base.as_strided(*place), name)

    def test_tensors_of_one_storage_are_written_once_and_share_again(self):
        base = torch.randn(4, 1000)
        whole, row = machine.views(base, [((4, 1000), (1000, 1), 0), ((1000,), (1,), 2000)])
        store = self.open_store()
        report = store.save(1, {"whole": whole, "row": row})
        self.assertEqual(report.written_bytes, base.nbytes)
        read = store.read()
        self.assert_same_bits(read["row"], base[2])
        self.assertEqual(
            read["row"].untyped_storage().data_ptr(), read["whole"].untyped_storage().data_ptr()
        )

    def test_a_save_follows_the_current_stream(self):
        tensor, new = to_gpu(torch.zeros(MIB)), to_gpu(torch.ones(MIB))
        store = self.open_store()
        with machine.busy_stream():
            machine.enqueue_copy(tensor, new)
            store.save(1, {"t": tensor})
        self.assert_same_bits(store.read()["t"], torch.ones(MIB))

    def test_changes_behind_wait_staged_are_not_saved(self):
        tensor = to_gpu(torch.zeros(4 * MIB))
        values = [to_gpu(torch.full((4 * MIB,), float(step))) for step in range(4)]
        store = self.open_store()
        for snapshot in (False, True):
            for step in range(4):
                stream = torch.cuda.current_stream()
                machine.enqueue_copy(tensor, values[step])
                handle = store.save_async(
                    step,
                    {"t": tensor},
                    overwrite=True,
                    tuning=cairn.SaveTuning(device_snapshot=snapshot),
                )
                handle.wait_staged(stream)
                machine.enqueue_copy(tensor, values[0])
                handle.result()
            for step in range(4):
                read = store.read(step=step)["t"]
                self.assertTrue(bool((read == step).all()), f"step {step}, snapshot {snapshot}")
