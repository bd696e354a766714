"""States that torch writes to files, and what the tests of these files do with them."""

import collections
import resource
import signal
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import random_tensor

import cairn
from tool_programs import run_interop, run_program


@pytest.fixture
def admin():
    """kv-admin in this process."""
    return run_interop


@pytest.fixture
def program():
    """kv-admin in its own process, which starts Python."""
    return lambda *words, **options: run_program("kv-admin", *words, **options)


def imported(admin, store, path, *options):
    return admin("import", store, "--step", 1, path, *options, status=0)


def refused(admin, store, path):
    """The error of an import that must not create the store."""
    finished = admin("import", store, "--step", 1, path, status=2)
    assert not store.exists(), path
    return finished.err


def exported(admin, store, path, *options):
    return admin("export", store, path, *options, status=0)


def read(store):
    with cairn.open(store) as opened:
        return opened.read()


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning about a single process
        return function(*arguments, **options)


def save_dcp(state, path, planner=None, **options):
    writer = dcp.FileSystemWriter(path, **options)
    quietly(dcp.save, state, storage_writer=writer, planner=planner)


def no_room():
    """Limits the files of a process that is about to start to 1 MiB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def nested():
    weight = torch.randn(8, 6)
    return {
        "model": {"wte.weight": weight, "head": weight, "t": weight.t(), "row": weight[3]},
        "layers": [
            random_tensor(torch.bfloat16, 4, 4),
            {"w": torch.ones(3), "n": 5},
            [torch.zeros(2), "x"],
        ],
        "scalar": torch.tensor(2.5),
        "empty tensor": torch.zeros(0, 3),
        "betas": (0.9, 0.95),
        "params": [0, 1, [2, 3]],
        "name": "run",
    }


class Runs:
    """Pickles itself as a call of os.system."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.path}",)


# The dtypes of torch; its sub-byte integers can be created only by a view.
SIMPLE_DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
]


def every_dtype():
    return {str(dtype): random_tensor(dtype, 3, 4, seed=i) for i, dtype in enumerate(SIMPLE_DTYPES)}


def plain_values():
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, -1, 255, 256, 65535, 65536, -(2**31), 2**31, 2**62, -(2**63), 2**63, -(2**70)],
        "floats": (0.0, -0.0, 1.5, float("inf"), float("nan"), 5e-324),
        "complex": 1 - 2j,
        "text": "grün \U0001f40b \udc80",
        "bytes": bytes(range(256)),
        "no bytes": b"",
        "size": torch.Size([2, 3]),
        "counter": collections.Counter("aab"),
        "ordered": collections.OrderedDict(b=1, a=2),
        "keys": {
            0: "int",
            1.5: "float",
            2.0: "whole",
            None: "none",
            True: "bool",
            -(2**65): "long",
        },
        "empty": {"dict": {}, "list": [], "tuple": ()},
    }
