"""torch.distributed.checkpoint with CUDA tensors, in one process."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpu_machine import GpuTest, machine, random_bits, to_gpu

from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import CairnStager

MIB = 1 << 20


class Dcp(GpuTest):
    def setUp(self) -> None:
        super().setUp()
        # That no process group is needed is what these are about.
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(caught.__exit__, None, None, None)
        warnings.filterwarnings("ignore", "torch.distributed is disabled")

    def _save(self, state, step):
        dcp.save(state, storage_writer=CairnWriter(self.path, step=step), no_dist=True)

    def _load(self, state):
        dcp.load(state, storage_reader=CairnReader(self.path), no_dist=True)

    def test_a_state_comes_back_on_the_device(self):
        host = {str(dtype): random_bits(dtype, (7, 1237)) for dtype in machine.dtypes}
        host["large"] = torch.randn(3, MIB)
        self._save({name: to_gpu(tensor) for name, tensor in host.items()} | {"n": 5}, 1)
        target = {name: machine.empty(tuple(t.shape), t.dtype) for name, t in host.items()}
        target["n"] = 0
        self._load(target)
        self.assertEqual(target["n"], 5)
        for name, tensor in host.items():
            self.assert_same_bits(target[name], tensor, name)

    def test_saves_and_loads_follow_the_current_stream(self):
        tensor, new = to_gpu(torch.zeros(MIB)), to_gpu(torch.ones(MIB))
        with machine.busy_stream():
            machine.enqueue_copy(tensor, new)
            self._save({"t": tensor}, 1)
        target, zeros = machine.empty((MIB,), torch.float32), to_gpu(torch.zeros(MIB))
        with machine.busy_stream():
            machine.enqueue_copy(target, zeros)
            self._load({"t": target})
        self.assert_same_bits(target, torch.ones(MIB))

    def test_async_save_keeps_what_was_there(self):
        if not machine.computes:
            self.skipTest("the stager's copies are torch's own, which this machine has not")
        self.path.parent.mkdir(exist_ok=True)
        dist.init_process_group(
            "gloo", init_method=f"file://{self.path.parent}/meeting", rank=0, world_size=1
        )
        self.addCleanup(dist.destroy_process_group)
        stager = CairnStager()
        self.addCleanup(stager.close)
        tensor = to_gpu(torch.ones(MIB))
        for step in (1, 2):
            writer = CairnWriter(self.path, step=step)
            future = dcp.async_save({"t": tensor}, storage_writer=writer, async_stager=stager)
            tensor.add_(1)
            getattr(future, "upload_completion", future).result()
        self._load({"t": tensor})
        self.assert_same_bits(tensor, torch.full((MIB,), 2.0))
