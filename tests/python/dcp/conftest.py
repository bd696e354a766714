"""Fixtures of the tests of ``torch.distributed.checkpoint``, which run on files and on Cairn."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
from storages import NATIVE, STORAGES, Native, Storage
from torch.distributed.checkpoint.planner import SavePlanner


def pytest_configure(config: pytest.Config) -> None:
    for message in (
        "torch.distributed is disabled",
        "torch.distributed is unavailable",
        "Detected an existing checkpoint",
    ):
        config.addinivalue_line("filterwarnings", f"ignore:{message}")


@pytest.fixture(params=STORAGES, ids=attrgetter("name"))
def storage(request: pytest.FixtureRequest) -> Storage:
    return request.param


@pytest.fixture(params=[*STORAGES, *NATIVE], ids=attrgetter("name"))
def any_storage(request: pytest.FixtureRequest) -> Storage | Native:
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture(autouse=True)
def no_cached_plans() -> Iterator[None]:
    """Planners cache plans in their class."""
    yield
    for name in ("save_plan", "final_save_plan", "all_plans", "global_plan", "metadata"):
        getattr(SavePlanner, f"_cached_{name}").clear()
