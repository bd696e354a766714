"""`cairn.jax.import_orbax` with checkpoints that real Orbax has written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
orbax = pytest.importorskip("orbax.checkpoint")

import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec as P  # noqa: E402

import cairn  # noqa: E402
import cairn.jax  # noqa: E402
from cairn import Conflict, Invalid, NotFound  # noqa: E402


def sample() -> dict[str, Any]:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    weight = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    return {
        "params": {
            "w": jax.device_put(weight, NamedSharding(mesh, P("x", "y"))),
            "half": jnp.ones((3, 5), jnp.bfloat16) * 1.5,
        },
        "opt_state": [jnp.arange(4), (np.arange(6, dtype=np.int64), jnp.float32(2.5))],
        "step": 7,
        "rate": 0.25,
        "nothing": None,
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", sample())
    return tmp_path / "orbax"


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def test_a_checkpoint_becomes_a_step(checkpoint, tmp_path):
    path = tmp_path / "store"

    report = cairn.jax.import_orbax(checkpoint, path, 3, tags=["orbax"])

    expected = sample()
    assert report.logical_bytes == sum(
        leaf.nbytes for leaf in jax.tree.leaves(expected) if hasattr(leaf, "nbytes")
    )
    loaded = cairn.jax.load(path, expected)
    for got, want in zip(jax.tree.leaves(loaded), jax.tree.leaves(expected)):
        assert type(got) is type(want) and bits(got) == bits(want)
    assert loaded["nothing"] is None
    assert loaded["params"]["w"].sharding == expected["params"]["w"].sharding
    with cairn.open(path) as store:
        read = store.read("params.half", step="orbax")["params"]["half"]
        assert torch.equal(read, torch.full((3, 5), 1.5, dtype=torch.bfloat16))


def test_groups_are_written_one_after_the_other(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("cairn.jax._orbax._GROUP_BYTES", 1)
    path = tmp_path / "store"

    cairn.jax.import_orbax(checkpoint, path, 0, prefix="ema")

    loaded = cairn.jax.load(path, sample(), prefix="ema")
    for got, want in zip(jax.tree.leaves(loaded), jax.tree.leaves(sample())):
        assert bits(got) == bits(want)


def test_a_step_of_a_checkpoint_manager(tmp_path):
    array = jnp.arange(10.0)
    with orbax.CheckpointManager(tmp_path / "manager", item_names=("default", "ema")) as manager:
        manager.save(5, args=orbax.args.Composite(
            default=orbax.args.StandardSave({"w": array}),
            ema=orbax.args.StandardSave({"w": array * 2}),
        ))
    path = tmp_path / "store"

    cairn.jax.import_orbax(tmp_path / "manager" / "5", path, 5)
    cairn.jax.import_orbax(tmp_path / "manager" / "5", path, 6, item="ema")

    assert bits(cairn.jax.load(path, step=5)["w"]) == bits(array)
    assert bits(cairn.jax.load(path, step=6)["w"]) == bits(array * 2)


def test_what_cannot_be_imported_leaves_no_step(checkpoint, tmp_path):
    path = tmp_path / "store"
    with pytest.raises(NotFound, match="_METADATA"):
        cairn.jax.import_orbax(tmp_path, path, 1)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"a": 1})
        with pytest.raises(Conflict):
            cairn.jax.import_orbax(checkpoint, store, 1)
        (checkpoint / "manifest.ocdbt").unlink()
        with pytest.raises(Invalid, match="Orbax cannot read"):
            cairn.jax.import_orbax(checkpoint, store, 2)
        (checkpoint / "_METADATA").write_text("{")
        with pytest.raises(Invalid, match="Orbax cannot read"):
            cairn.jax.import_orbax(checkpoint, store, 2)
        assert store.steps() == [1]


def test_the_import_takes_bounded_memory(tmp_path):
    mebibyte = 1 << 20
    tree = {f"w{i}": np.full(4 * mebibyte, i, np.float32) for i in range(24)}  # 384 MiB
    with orbax.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", tree)
    program = """
import sys, cairn, cairn.jax, cairn.jax._orbax, orbax.checkpoint
cairn.jax._orbax._GROUP_BYTES = 32 << 20
peak_kib = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
start = peak_kib()
cairn.jax.import_orbax(sys.argv[1], sys.argv[2], 1)
print((peak_kib() - start) >> 10)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "orbax"), str(tmp_path / "store")],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=True,
    )

    assert int(done.stdout.split()[-1]) < 250, done.stdout
    with cairn.open(tmp_path / "store") as store:
        assert store.step_info(1).logical_bytes == 384 * mebibyte
