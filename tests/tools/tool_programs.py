"""Runs the programs of build/bin (or $CAIRN_BIN_DIR) on stores in temporary directories."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import torch
from safetensors.torch import save_file

import cairn

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PYTHON = os.environ.setdefault("CAIRN_PYTHON", sys.executable)  # for files of torch
sys.path.append(str(REPOSITORY / "tests" / "python"))
import interpreter_client  # noqa: E402
import interpreters  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", REPOSITORY / "build" / "bin"))


class Finished:
    """The result of a program: its exit status and what it printed."""

    def __init__(self, status, out, err):
        self.status = status
        self.out = out
        self.err = err

    def json(self):
        return json.loads(self.out)


def run_program(name, *words, status=None, **options):
    """Runs one of our programs, which must end with `status` if it is not None; termination by a
    signal or a hang is always a failure. Without options, the Python that an import or an export
    of kv-admin starts is forked from one that has imported torch."""
    moves = name == "kv-admin" and words[:1] in (("import",), ("export",))
    if moves and not options and os.environ["CAIRN_PYTHON"] == PYTHON:
        forked = {"CAIRN_PYTHON": interpreter_client.__file__}
        forked["CAIRN_TEST_INTERPRETERS"] = interpreters.server_socket()
        options = {"env": {**os.environ, **forked}}
    process = subprocess.run(
        [BIN_DIR / name, *map(str, words)], capture_output=True, timeout=1200, **options
    )
    finished = Finished(process.returncode, process.stdout.decode(), process.stderr.decode())
    return checked(name, words, finished, status)


def checked(name, words, finished, status):
    """`finished`, if it has the status, and an error is one line."""
    statuses = (0, 1, 2) if status is None else (status,)
    assert finished.status in statuses, (name, words, finished.status, finished.out, finished.err)
    if finished.status == 2:
        assert finished.err.startswith(f"{name}: "), finished.err
        assert finished.err.count("\n") == 1 + finished.err.count(": warning: "), finished.err
    return finished


def run_interop(verb, *words, status=None, **options):
    """Imports and exports as kv-admin does it for files of torch, but in this process: importing
    torch takes longer than most tests. Runs the program for anything else, and with `options`."""
    words = list(map(str, words))
    if options or verb not in ("import", "export"):
        return run_program("kv-admin", verb, *words, status=status, **options)
    from cairn._interop.main import main

    if verb == "export":
        store, _, step = words[0].partition("@")
        with cairn.open(store) as opened:
            step = step or opened.steps()[-1]
        count = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        patterns = [f"--pattern={pattern}" for pattern in words[2:count]]
        suffix = pathlib.Path(words[1]).suffix
        kind = suffix[1:] if suffix in (".dcp", ".safetensors") else "torch"
        form = [] if "--format" in words else ["--format", kind]
        words = [store, words[1], "--step", str(step), *form, *patterns, *words[count:]]
    out, err = io.StringIO(), io.StringIO()
    limit, handler = sys.getrecursionlimit(), signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([verb, *words])
    finally:  # a program would have its process to itself
        sys.setrecursionlimit(limit)
        signal.signal(signal.SIGTERM, handler)
    return checked("kv-admin", words, Finished(code, out.getvalue(), err.getvalue()), status)


def peak_memory(*words):
    """Runs kv-admin successfully. Returns the most memory that was not part of a file when it was
    looked at, in bytes: pages of files can be dropped at any time."""
    process = subprocess.Popen([BIN_DIR / "kv-admin", *map(str, words)], stdout=subprocess.DEVNULL)
    status = pathlib.Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        lines = [line for line in status.read_text().splitlines() if line.startswith("RssAnon")]
        peak = max([peak, *(int(line.split()[1]) << 10 for line in lines)])
        time.sleep(0.01)
    assert process.returncode == 0
    return peak


def small_model(scale=1.0):
    """Tensors of several dtypes and shapes, including an empty one and a scalar."""
    generator = torch.Generator().manual_seed(7)
    return {
        "model.wte.weight": torch.randn(100, 64, generator=generator) * scale,
        "model.layers.1.w": torch.randn(40, 40, generator=generator).to(torch.bfloat16),
        "model.layers.10.w": torch.randn(8, 3, 5, generator=generator).to(torch.float16),
        "model.ids": torch.arange(-5, 20, dtype=torch.int64),
        "model.mask": torch.tensor([True, False, True]),
        "optimizer.step": torch.tensor(17.0),
        "optimizer.empty": torch.zeros(0, 4),
    }


def import_model(admin, folder, store, step, tensors, *options):
    path = pathlib.Path(folder) / f"model-{step}.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return admin("import", store, "--step", step, path, *options, status=0)


def into_store(path, *states, first=1, **options):
    """Saves these states as the steps `first`, `first` + 1, ... Returns the path."""
    with cairn.open(path, mode="a") as store:
        for step, state in enumerate(states, first):
            store.save(step, state, **options)
    return path


def steps_of(path):
    with cairn.open(path) as store:
        return store.steps()


def assert_equal(got, want):
    """The same tensors, in any order."""
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name
