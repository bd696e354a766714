"""States that torch writes to files, and their comparison bit for bit."""

import collections
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from tool_programs import run_interop, run_program

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def admin():
    """kv-admin in this process."""
    return run_interop


@pytest.fixture
def program():
    """kv-admin in its own process, which starts Python."""
    return lambda *words, **options: run_program("kv-admin", *words, **options)


# The dtypes of torch; its sub-byte integers can be created only by a view.
SIMPLE_DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
]


def bits(dtype, shape, seed=0):
    """A tensor of random bits, including NaNs with payloads; bools are 0 or 1."""
    count = int(torch.Size(shape).numel())
    size = torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        raw = raw % 2
    return raw.view(dtype).reshape(shape)


def every_dtype():
    return {str(dtype): bits(dtype, (3, 4), i) for i, dtype in enumerate(SIMPLE_DTYPES)}


def raw_bytes(tensor):
    """The bytes of the elements, row-major."""
    tensor = tensor.detach().contiguous()
    if tensor.numel() == 0:
        return b""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a, b):
    """Equal values of equal types, tensors bit for bit and in the same order of keys."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return (
            isinstance(a, torch.Tensor)
            and isinstance(b, torch.Tensor)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and raw_bytes(a) == raw_bytes(b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


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


def run_python(code, *words, timeout=100):
    """Runs `code` in a new interpreter, which gloo ranks and hostile pickles need."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr.decode()
