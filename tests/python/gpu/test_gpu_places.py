"""Saves of CUDA tensors to a store in memory and to a bucket."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch
from gpu_machine import GpuTest, random_bits, to_gpu

import cairn

MIB = 1 << 20


class Places(GpuTest):
    def check(self, address: str) -> None:
        host = {"large": torch.randn(5 * MIB), "bytes": random_bits(torch.uint8, (333, 77))}
        host |= {f"t{i}": torch.randn(1 + i * 131) for i in range(100)}
        state = {name: to_gpu(tensor) for name, tensor in host.items()}
        with cairn.open(address, mode="a") as store:
            store.save(1, state)
            self.assertEqual(store.save(2, state).device_bytes, 0)
            handle = store.save_async(3, state, tuning=cairn.SaveTuning(incremental=False))
            handle.wait_staged()
            handle.result()
            targets = {name: to_gpu(torch.zeros_like(tensor)) for name, tensor in host.items()}
            for step in (1, 2, 3):
                store.load(targets, step=step)
                for name, tensor in host.items():
                    self.assert_same_bits(targets[name], tensor, f"{name} of step {step}")

    def test_memory(self):
        self.check("memory:gpu")

    def test_a_bucket(self):
        program = os.environ.get("CAIRN_FAKE_S3_SERVER")
        if program is None or not Path(program).exists():
            self.skipTest("CAIRN_FAKE_S3_SERVER does not name the program fake_s3_server")
        server = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(server.wait, 30)
        self.addCleanup(server.stdin.close)
        self.addCleanup(server.stdout.close)
        endpoint = server.stdout.readline().strip()
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        os.environ["AWS_ACCESS_KEY_ID"] = "KEY"
        os.environ["AWS_SECRET_ACCESS_KEY"] = "SECRET"
        self.check(f"s3://bucket/gpu?endpoint={endpoint}")
