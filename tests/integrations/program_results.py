"""Runs a program that prints its result as one line of JSON after the word RESULT."""

import json
import os
import signal
import subprocess
import sys


def run_program(program, folder, *arguments, ranks=1):
    """The result of the program in `folder`, with `ranks` ranks; None if it was killed."""
    launcher = []
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    paths = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *launcher, program, *arguments],
        capture_output=True, text=True, timeout=800, cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        assert done.returncode == -signal.SIGKILL or ranks > 1, done.stderr[-3000:]
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(results[0].removeprefix("RESULT "))
