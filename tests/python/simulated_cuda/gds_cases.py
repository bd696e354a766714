"""GPUDirect Storage from Python, on the simulated cuFile: the reports count its bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from device_memory import control, empty, to_cuda, to_host

import cairn

MIB = 1 << 20
LIBRARY = "tests/cuda/simulated_cufile/libcufile_simulated.so"


@pytest.fixture(autouse=True)
def cufile(monkeypatch, tmp_path):
    library = Path(cairn.__file__).parents[2] / LIBRARY
    if not library.exists():
        pytest.skip(f"no {library}: the build found no cufile.h")
    try:
        os.close(os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"no direct I/O where the tests' files are: {error}")
    monkeypatch.setenv("CAIRN_CUFILE_LIBRARY", str(library))
    monkeypatch.setenv("CAIRN_GDS", "on")


def test_reports_tell_what_devices_wrote_and_read(store, monkeypatch):
    host = torch.randn(5 * MIB)
    report = store.save(1, {"t": to_cuda(host)})
    assert report.direct_bytes == report.written_bytes == host.nbytes
    assert report.device_bytes == 0

    control.ResetCounters()
    target = empty((5 * MIB,))
    loaded = store.load({"t": target})
    assert loaded.direct_bytes == host.nbytes
    assert torch.equal(to_host(target), host)

    monkeypatch.setenv("CAIRN_GDS", "off")
    assert store.save(2, {"t": to_cuda(host + 1)}).direct_bytes == 0
    assert store.load({"t": target}).direct_bytes == 0
    assert torch.equal(to_host(target), host + 1)


def test_a_snapshot_is_written_by_the_device(store):
    host = torch.randn(5 * MIB)
    for snapshot in (False, True):
        handle = store.save_async(int(snapshot), {"t": to_cuda(host)}, device_snapshot=snapshot)
        report = handle.result()
        assert report.written_bytes == (0 if snapshot else host.nbytes)
        assert report.direct_bytes == 0, "lazy staging releases the tensors sooner"
    handle = store.save_async(2, {"t": to_cuda(host + 1)}, device_snapshot=True)
    assert handle.result().direct_bytes == host.nbytes
    assert torch.equal(store.read(step=2)["t"], host + 1)
