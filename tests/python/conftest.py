"""Fixtures and settings of the Python tests."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, settings
from s3_faults import faults  # noqa: F401 - a fixture
from s3_server import bucket, folder, server  # noqa: F401 - fixtures

import cairn
from cairn import _cairn
from cairn._mirror import worker

# The same examples on every run and machine. A failure prints its example.
settings.register_profile(
    "cairn",
    deadline=None,
    derandomize=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("cairn")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until the tests are collected, which takes two thirds of the time without it
    # kv-admin starts it for files of torch.
    os.environ.setdefault("CAIRN_PYTHON", sys.executable)
    # torch emits these at the first tensor of such a dtype, and the tests create one of each.
    config.addinivalue_line("filterwarnings", "ignore:ComplexHalf support is experimental")
    config.addinivalue_line("filterwarnings", "ignore:torch.quantize_per_tensor")
    # A background process of a shell inherits an ignored SIGINT, and Python does not change that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    gc.freeze()  # collections then do not look at all objects of torch again
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def report_always() -> None:
    """Progress is reported at each opportunity: no test requires that a call takes some time."""
    _cairn.set_progress_interval(0)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    # Sums in a different order would differ in the last bit.
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> cairn.Mirror:
    """A mirror in a bucket of a server where nobody listens. Its clock advances only when it is
    asked, twice in each attempt, so that there are retries on a machine of any speed."""
    now = itertools.count(0.0, 0.2)
    clock = SimpleNamespace(monotonic=lambda: next(now), time_ns=time.time_ns)
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("CAIRN_S3_TIMEOUT", "1")
    return cairn.Mirror("s3://bucket/store?endpoint=http://127.0.0.1:9", timeout=0.5)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cairn.Store]:
    """One store for all examples of a module."""
    with cairn.open(tmp_path_factory.mktemp("shared") / "store", mode="a") as opened:
        yield opened


@pytest.fixture
def store(path: Path) -> Iterator[cairn.Store]:
    with cairn.open(path, mode="a", grace=0) as opened:
        yield opened
