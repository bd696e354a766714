"""A training that is killed and resumed continues bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpu_machine import GpuTest, needs_torch_kernels

STEPS = 12


@needs_torch_kernels
class Training(GpuTest):
    def _start(self, store: Path) -> subprocess.Popen:
        script = Path(__file__).with_name("training.py")
        process = subprocess.Popen(
            [sys.executable, script, store, str(STEPS)], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(process.stdout.close)
        return process

    def test_it_resumes_with_the_same_losses(self):
        straight = self._start(self.path / "straight")
        expected = straight.stdout.read().splitlines()
        self.assertEqual(straight.wait(), 0)
        self.assertEqual(len(expected), STEPS)

        lines, kills = [], 0
        while kills < 2:
            process = self._start(self.path / "killed")
            # Each life is killed two steps after its first; the save of the last one is running.
            life = [process.stdout.readline().rstrip() for _ in range(3)]
            process.kill()
            process.wait()
            lines += life
            kills += 1
        last = self._start(self.path / "killed")
        lines += last.stdout.read().splitlines()
        self.assertEqual(last.wait(), 0)
        self.assertEqual(sorted(set(lines), key=lambda line: int(line.split()[0])), expected)
        self.assertEqual(len({line.split()[0] for line in lines}), STEPS)
