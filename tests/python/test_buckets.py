"""Stores in a bucket of a real S3 server: save, read, inspect, copy, and DCP."""

from __future__ import annotations

import os

import cairn
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn_testing import run_python
from s3_faults import faults  # noqa: F401 - a fixture
from s3_server import bucket, folder, server  # noqa: F401 - fixtures

def make_state() -> dict:
    generator = torch.Generator().manual_seed(7)
    layers = {f"{i}": torch.randn(300, 700, generator=generator) for i in range(40)}
    return {"model": layers, "step": 3, "name": "run"}


def assert_equal(found: dict, expected: dict) -> None:
    assert found["step"] == expected["step"]
    assert found["name"] == expected["name"]
    assert found["model"].keys() == expected["model"].keys()
    for name, tensor in expected["model"].items():
        assert torch.equal(found["model"][name], tensor), name


def test_a_close_that_cannot_remove_the_lease_can_be_repeated(bucket, faults, monkeypatch):
    monkeypatch.setenv("CAIRN_S3_TIMEOUT", "4")
    store = cairn.open(faults.address(bucket), mode="a")
    faults.refuse(1 << 30)
    with pytest.raises(cairn.Unavailable):
        store.close()
    faults.refuse(0)
    with pytest.raises(cairn.Invalid, match="closed"):
        store.steps()
    store.close()
    store.close()
    run_python("import cairn, sys; cairn.open(sys.argv[1], mode='a').close()", bucket)


def test_a_second_writer_is_refused_and_named(bucket):
    with cairn.open(bucket, "a") as store:
        with pytest.raises(cairn.Conflict, match=str(os.getpid())):
            cairn.open(bucket, "a")
        store.save(1, {"n": 1})
        with cairn.open(bucket, "a", take_over=True) as other:
            with pytest.raises(cairn.Conflict):
                store.save(2, {"n": 2})
            other.save(3, {"n": 3})
    with cairn.open(bucket) as reader:
        assert reader.steps() == [1, 3]


def test_dcp_saves_and_loads(bucket):
    state = make_state()
    dcp.save({"model": state["model"]}, storage_writer=CairnWriter(bucket), no_dist=True)
    target = {"model": {k: torch.zeros_like(v) for k, v in state["model"].items()}}
    dcp.load(target, storage_reader=CairnReader(bucket), no_dist=True)
    for name, tensor in state["model"].items():
        assert torch.equal(target["model"][name], tensor), name


def test_credentials_of_a_function(bucket, server, monkeypatch):
    key = monkeypatch.delenv("AWS_ACCESS_KEY_ID") or server["AWS_ACCESS_KEY_ID"]
    secret = monkeypatch.delenv("AWS_SECRET_ACCESS_KEY") or server["AWS_SECRET_ACCESS_KEY"]
    calls = []

    def credentials() -> dict:
        calls.append(1)
        return {"access_key_id": key, "secret_access_key": secret}

    with cairn.open(bucket, "a", credentials=credentials) as store:
        store.save(1, {"n": 1})
    assert calls

    def raises() -> dict:
        raise RuntimeError(secret)

    wrong = "a-wrong-secret-0123456789"
    for function in (
        raises,
        lambda: {"access_key_id": key},
        lambda: {"access_key_id": key, "secret_access_key": wrong},
    ):
        with pytest.raises(cairn.Error) as raised:
            cairn.open(bucket, credentials=function)
        assert secret not in str(raised.value)
        assert wrong not in str(raised.value)


def test_dcp_mirrors_a_local_store_into_a_bucket_and_loads_from_it(bucket, tmp_path):
    state = make_state()
    writer = CairnWriter(tmp_path / "local", step=3, mirror=bucket)
    dcp.save(state, storage_writer=writer)
    writer.wait_mirrored(120)
    loaded = {**make_state(), "model": {k: torch.zeros(300, 700) for k in state["model"]}}
    loaded["step"] = 0
    reader = CairnReader(tmp_path / "lost", fallback=[bucket])
    dcp.load(loaded, storage_reader=reader)
    assert_equal(loaded, state)
