"""The programs and a store of two steps, as fixtures."""

import os
import pathlib
import sys
import tempfile

import pytest
import torch
from cairn import _cairn

from live_server import live_server
from report_runs import prepared_run
from tool_programs import import_model, run_program, small_model

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from browser import Browser, missing_browser  # noqa: E402


@pytest.fixture(autouse=True, scope="session")
def report_always():
    """Progress is reported at each opportunity: no test requires that a call takes some time."""
    _cairn.set_progress_interval(0)


@pytest.fixture(scope="session")
def dump():
    return lambda *words, **options: run_program("kv-dump", *words, **options)


@pytest.fixture(scope="session")
def admin():
    return lambda *words, **options: run_program("kv-admin", *words, **options)


@pytest.fixture(scope="session")
def bench():
    return lambda *words, **options: run_program("kv-bench", *words, **options)


@pytest.fixture(scope="session")
def two_steps(tmp_path_factory, admin):
    """A store with step 100 and, with one tensor changed, step 200."""
    folder = tmp_path_factory.mktemp("two_steps")
    store = folder / "store"
    first = small_model()
    import_model(admin, folder, store, 100, first)
    second = dict(first)
    second["model.wte.weight"] = first["model.wte.weight"].clone()
    second["model.wte.weight"][3, 5] += 0.5
    second["model.new"] = torch.ones(4)
    del second["model.mask"]
    import_model(admin, folder, store, 200, second)
    return store


@pytest.fixture(scope="session")
def memory_folder():
    """A folder in memory, if there is one, so that hundreds of saves do not wait for a disk."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cairn-test-", dir=where) as folder:
        yield pathlib.Path(folder)


@pytest.fixture(scope="session")
def report_run(memory_folder):
    """The store of `prepared_run`, which tests do not change."""
    return prepared_run(memory_folder / "run" / "store")


@pytest.fixture(scope="session")
def report_server(report_run):
    """The prepared run, which is served."""
    with live_server(report_run) as running:
        yield running


@pytest.fixture(scope="session")
def chromium():
    if reason := missing_browser():
        pytest.skip(reason)
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    """A window without the page that another test has opened, and without its messages."""
    chromium.open("about:blank")
    chromium.console()
    chromium.resize(1280)
    chromium.prefer("light")
    return chromium
