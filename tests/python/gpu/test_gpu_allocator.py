"""Huge tensors, saves next to CUDA graphs, and memory of other allocators."""

from __future__ import annotations

import threading

import torch
from gpu_machine import GpuTest, needs_torch_kernels

import cairn

MIB = 1 << 20
GIB = 1 << 30


@needs_torch_kernels
class Allocator(GpuTest):
    def test_a_tensor_of_more_than_4_gib(self):
        tensor = torch.randint(0, 256, (4 * GIB + MIB + 3,), dtype=torch.uint8, device="cuda")
        store = self.open_store()
        store.save(1, {"t": tensor})
        tensor[4 * GIB + 5] += 1
        torch.cuda.synchronize()
        report = store.save(2, {"t": tensor})
        self.assertEqual(report.device_bytes, 64 << 10)
        target = torch.zeros_like(tensor)
        store.load({"t": target}, step=2)
        self.assertTrue(torch.equal(target, tensor))

    def test_saves_between_the_replays_of_a_graph(self):
        tensor = torch.zeros(4 * MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.add_(1)
        store = self.open_store()
        for step in (1, 2, 3):
            graph.replay()
            store.save_async(step, {"t": tensor}).wait_staged(torch.cuda.current_stream())
        graph.replay()
        for step in (1, 2, 3):
            self.assertTrue(bool((store.read(step=step)["t"] == step).all()), f"step {step}")

    def test_a_graph_is_captured_while_a_save_runs(self):
        state = {"t": torch.randn(64 * MIB, device="cuda")}
        store = self.open_store()
        other = torch.zeros(MIB, device="cuda")
        for step in range(4):
            handle = store.save_async(
                step, state, tuning=cairn.SaveTuning(incremental=step % 2 == 1)
            )
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(2000):
                    other.add_(1)
            handle.result()
            self.assert_same_bits(store.read(step=step)["t"], state["t"])

    def test_another_thread_saves_during_a_capture(self):
        state = {"t": torch.randn(16 * MIB, device="cuda")}
        store = self.open_store()
        failures = []

        def save() -> None:
            try:
                store.save(1, state)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=save)
        other = torch.zeros(MIB, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            other.add_(1)
            thread.start()
            thread.join()
        self.assertEqual(failures, [])
        self.assert_same_bits(store.read()["t"], state["t"])

    def test_a_save_in_a_capture_is_refused(self):
        state = {"t": torch.randn(MIB, device="cuda")}
        store = self.open_store()
        store.save(1, state)
        other = torch.zeros(MIB, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            other.add_(1)
            with self.assertRaisesRegex(cairn.Invalid, "graph is being captured"):
                store.save(2, state)
        store.save(2, state)
        self.assertEqual(list(store.steps()), [1, 2])

    def test_a_load_in_a_capture_is_refused(self):
        state = {"t": torch.randn(MIB, device="cuda")}
        store = self.open_store()
        store.save(1, state)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            with self.assertRaisesRegex(cairn.Invalid, "graph is being captured"):
                store.load(state)

    def test_memory_of_another_allocator(self):
        kinds = [torch.empty(8 * MIB, pin_memory=True).copy_(torch.randn(8 * MIB))]
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            kinds.append(torch.randn(8 * MIB, device="cuda"))
        store = self.open_store()
        store.save(1, {"pinned": kinds[0], "pool": kinds[1]})
        read = store.read()
        self.assert_same_bits(read["pinned"], kinds[0])
        self.assert_same_bits(read["pool"], kinds[1])
