"""Stores in a pool of a real Ceph cluster: what tests/matrix/ and the process suites do not do."""

from __future__ import annotations

import pathlib
import subprocess
import threading
import time

import cairn
import pytest
import torch
from cairn_testing import assert_same

ROOT = pathlib.Path(__file__).resolve().parents[2]
CEPH = ROOT / "tests/support/ceph.sh"
PROGRAMS = pathlib.Path(cairn.__file__).parents[2] / "bin"

pytestmark = pytest.mark.ceph


@pytest.fixture(params=["replicated", "erasure-coded"])
def pool(cluster, monkeypatch, request):
    """The address of an empty namespace; stripes are in a pool of each kind."""
    environment = cluster[1]
    monkeypatch.setenv("CEPH_CONF", environment["CEPH_CONF"])
    address = f"rados:{environment['CAIRN_TEST_CEPH_POOL']}/{request.node.name}?stripe=8388608"
    if request.param == "erasure-coded":
        address += f"&data_pool={environment['CAIRN_TEST_CEPH_EC_POOL']}"
    return address


def run(program: str, *arguments: str) -> str:
    finished = subprocess.run(
        [PROGRAMS / program, *arguments], capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def rados(pool: str, *arguments: str) -> list[str]:
    """The lines that the program `rados` prints about the namespace."""
    name, _, namespace = pool.partition("?")[0].removeprefix("rados:").partition("/")
    command = ["rados", "-p", name, "-N", namespace, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def make_state() -> dict:
    generator = torch.Generator().manual_seed(7)
    layers = {f"{i}": torch.randn(300, 700, generator=generator) for i in range(40)}
    return {"model": layers, "step": 3, "name": "run"}


def test_programs_copy_and_rebuild(pool, tmp_path):
    state = make_state()
    local = str(tmp_path / "local")
    with cairn.open(local, "a") as store:
        store.save(5, state)
    run("kv-admin", "push", local, pool)
    for name in rados(pool, "ls"):
        if name.startswith("roots/"):
            rados(pool, "rm", name)
    run("kv-admin", "rebuild", pool)
    run("kv-dump", "verify", pool)
    back = str(tmp_path / "back")
    run("kv-admin", "pull", pool, back)
    with cairn.open(back) as store:
        assert_same(store.read(step=5), state)


def test_a_full_pool_is_an_error_and_keeps_its_steps(cluster, monkeypatch):
    monkeypatch.setenv("CEPH_CONF", cluster[1]["CEPH_CONF"])
    for command in ("create quota 4 4", "set-quota quota max_bytes 4000000"):
        subprocess.run(
            ["ceph", "osd", "pool", *command.split()], check=True, capture_output=True, timeout=60
        )
    saved = {}
    deadline = time.monotonic() + 60  # the quota has an effect within some seconds
    with cairn.open("rados:quota/run", "a") as store:
        with pytest.raises(cairn.Error, match="full or has reached its quota"):
            while time.monotonic() < deadline:
                state = {"n": torch.randn(1000, 1000)}
                store.save(len(saved) + 1, state)
                saved[len(saved) + 1] = state["n"]
    with cairn.open("rados:quota/run") as store:
        assert store.steps() == list(saved)
        for step, tensor in saved.items():
            assert torch.equal(store.read(step=step)["n"], tensor)


def test_the_death_of_an_osd_during_saves_loses_nothing(pool, cluster):
    folder = cluster[0]
    state = make_state()
    killer = threading.Thread(
        target=lambda: subprocess.run([CEPH, "kill", folder, "2"], check=True)
    )
    with cairn.open(pool, "a") as store:
        store.save(1, state)
        killer.start()
        try:
            step = 1
            after = None  # saves that began after the kill
            while after is None or step < after + 2:
                step += 1
                for tensor in state["model"].values():
                    tensor += 1
                store.save(step, state)
                if after is None and not killer.is_alive():
                    after = step
            with cairn.open(pool) as reader:
                assert reader.steps() == list(range(1, step + 1))
                assert_same(reader.read(), state)
        finally:
            killer.join()
            subprocess.run([CEPH, "revive", folder, "2"], check=True, timeout=30)
    run("kv-dump", "verify", pool)
