"""Saves of tensors that are not in host memory: their host copies are reused from save to save.

A complex tensor takes the same path through Python as a tensor on a device; `is_on_host` is patched
to return False for it.
"""

from __future__ import annotations

import gc

import pytest
import torch
from cairn_testing import resident_bytes, shares_storage

from cairn._tensors import sources

MIB = 1 << 20


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(sources, "is_on_host", lambda tensor: False)


def test_save_async_keeps_the_host_copies_of_device_tensors(store, on_device):
    base = torch.zeros(MIB // 2, dtype=torch.complex64)
    state = {"base": base, "part": base[10:20], "host": torch.zeros(MIB)}
    for step in range(2):
        base.fill_(step)
        store.save_async(step, state).result()
    gc.collect()
    host, resident = store.opened.copies._entries[id(base.untyped_storage())].host, resident_bytes()

    for step in range(2, 100):
        base.fill_(step)
        store.save_async(step, state).result()
        store.delete(step - 1)

    gc.collect()
    assert len(store.opened.copies) == 1 and store.opened.copies.total_bytes == base.nbytes
    assert store.opened.copies._entries[id(base.untyped_storage())].host is host
    assert resident_bytes() - resident < 8 * MIB
    read = store.read(step=99)
    assert bool((read["base"] == 99).all()) and shares_storage(read["base"], read["part"])
    store.save(100, state)
    assert len(store.opened.copies) == 1
    del state, base
    gc.collect()
    assert len(store.opened.copies) == 0
