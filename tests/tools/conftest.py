"""The programs and a store of two steps, as fixtures."""

import pytest
import torch

from tool_programs import import_model, run_program, small_model


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
