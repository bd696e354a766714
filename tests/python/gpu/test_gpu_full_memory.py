"""Saves and loads on a device whose memory is nearly full."""

from __future__ import annotations

import torch
from gpu_machine import GpuTest, needs_torch_kernels

import cairn

MIB = 1 << 20
GIB = 1 << 30


def _fill_memory(leave: int) -> list:
    """Tensors that take all memory of the device except for about `leave` bytes."""
    torch.cuda.empty_cache()
    taken = []
    # PyTorch allocates 20 MiB for tensors of less than 10 MiB.
    while (free := torch.cuda.mem_get_info()[0] - leave) >= 10 * MIB:
        length = min(free, 8 * GIB) // (2 * MIB) * (2 * MIB)
        taken.append(torch.empty(length, dtype=torch.uint8, device="cuda"))
    return taken


@needs_torch_kernels
class FullMemory(GpuTest):
    def test_nearly_full_memory(self):
        state = {f"t{i}": torch.randn(64 * MIB, device="cuda") for i in range(4)}
        state["strided"] = torch.randn(1000, 3000, device="cuda").t()
        expected = {name: tensor.cpu() for name, tensor in state.items()}
        store = self.open_store()
        store.save(0, {name: tensor[:1] for name, tensor in state.items()})
        taken, step, refused = [], 0, 0
        # From too little for a device snapshot to too little for anything.
        for leave in (800 * MIB, 200 * MIB, 100 * MIB, 40 * MIB, 2 * MIB):
            taken += _fill_memory(leave)
            for snapshot in (True, False):
                step += 1
                try:
                    handle = store.save_async(
                        step,
                        state,
                        tuning=cairn.SaveTuning(incremental=False, device_snapshot=snapshot),
                    )
                    handle.wait_staged()
                    handle.result()
                except cairn.Unavailable as error:
                    refused += 1
                    print(f"{leave >> 20} MiB left: refused: {error}")
                    self.assertNotIn(step, store.steps())
                else:
                    print(f"{leave >> 20} MiB left: saved")
                    read = store.read(step=step)
                    for name, tensor in expected.items():
                        self.assert_same_bits(read[name], tensor, name)
                    store.delete(step)
        taken.clear()
        torch.cuda.empty_cache()
        store.save(step + 1, state)
        read = store.read(step=step + 1)
        for name, tensor in expected.items():
            self.assert_same_bits(read[name], tensor, name)
        self.assertLessEqual(refused, 6, "it needs more than 100 MiB")
        for name, tensor in state.items():
            self.assert_same_bits(tensor, expected[name], name)

    def test_loads_into_nearly_full_memory(self):
        expected = torch.randn(64 * MIB)
        store = self.open_store()
        store.save(1, {"t": expected})
        target = torch.zeros(64 * MIB, device="cuda")
        taken = _fill_memory(2 * MIB)
        with self.assertRaises((cairn.Unavailable, torch.OutOfMemoryError)):
            store.read(device="cuda")
        try:
            store.load({"t": target})
        except cairn.Unavailable as error:
            print(f"refused: {error}")
        taken.clear()
        torch.cuda.empty_cache()
        store.load({"t": target})
        self.assert_same_bits(target, expected)
