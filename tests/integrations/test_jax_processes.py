"""`cairn.jax` in two processes that `jax.distributed` connects, with four devices each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import torch  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec as P  # noqa: E402

import cairn  # noqa: E402
import cairn.jax  # noqa: E402

_PRELUDE = """
import os, signal, sys
import jax, jax.numpy as jnp, numpy as np, cairn, cairn.jax
from jax.sharding import NamedSharding, PartitionSpec as P
rank, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
assert (jax.process_count(), jax.device_count(), len(jax.local_devices())) == (2, 8, 4)
mesh = jax.make_mesh((4, 2), ("x", "y"))
whole = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)

def put(spec, array=whole):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
"""


def run_processes(body: str, path: Path, *, dies: int | None = None) -> list[str]:
    """What each of two processes prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + body, str(rank), str(port), str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]
    outputs = [child.communicate(timeout=1200) for child in children]
    for rank, (child, (_, errors)) in enumerate(zip(children, outputs)):
        assert child.returncode == 0 or rank == dies, errors
    # JAX prints lines about its own connections.
    return [
        "\n".join(line for line in output.splitlines() if "[Gloo]" not in line)
        for output, _ in outputs
    ]


def test_processes_save_together_and_load_on_other_meshes(tmp_path):
    path = tmp_path / "store"
    body = """
tree = {"both": put(("x", "y")), "rows": put(("x",)), "all": put(()), "local": jnp.arange(5.0),
        "numpy": np.arange(3), "key": jax.random.key(3), "step": 7}
with cairn.jax.open(path, mode="a", timeout=60) as store:
    assert (store.rank, store.world_size) == (rank, 2)
    report = cairn.jax.save(store, 1, tree)
    cairn.jax.save_async(store, 2, tree).result()
    other = NamedSharding(jax.make_mesh((8,), ("z",)), P(None, "z"))
    template = {**tree, "both": jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=other)}
    loaded = cairn.jax.load(store, template, step=1)
    for name in ("both", "rows", "all"):
        for shard in loaded[name].addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index]), name
    assert loaded["both"].sharding == other and loaded["step"] == 7
    assert np.array_equal(loaded["local"], np.arange(5.0))
    print(report.written_bytes)
"""
    written = [int(output) for output in run_processes(body, path)]

    # The first process has the first shard of what is replicated.
    assert all(each > 4096 for each in written)
    assert sum(written) == 3 * 4096 + 5 * 4 + 3 * 8 + 2 * 4
    array = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    sharding = NamedSharding(jax.make_mesh((2, 4), ("x", "y")), P("y", "x"))
    target = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    with cairn.open(path) as store:
        assert store.steps() == [1, 2] and store.step_info(1).ranks == 2
        read = store.read(step=2)
        for name in ("both", "rows", "all"):
            assert torch.equal(read[name], torch.from_numpy(array))
        loaded = cairn.jax.load(store, {"both": target}, strict=False)["both"]
        assert np.array_equal(loaded, array)


def test_a_process_that_fails_or_dies_fails_the_other(tmp_path):
    path = tmp_path / "store"
    body = """
tree = {"both": put(("x", "y"))}
store = cairn.jax.open(path, mode="a", timeout=60)
cairn.jax.save(store, 1, tree)
try:
    cairn.jax.save(store, 2, {**tree, "bad": object() if rank == 1 else 1})
except cairn.Error as error:
    print(type(error).__name__, error)
cairn.jax.save(store, 3, tree)
if rank == 1:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
try:
    cairn.jax.save(store, 4, tree)
except cairn.Unavailable as error:
    print("unavailable", flush=True)
os._exit(0)
"""
    first, second = run_processes(body, path, dies=1)

    assert "rank 1: 'bad'" in first and "unavailable" in first
    assert second.startswith("Invalid 'bad'")
    with cairn.open(path, mode="a", take_over=True) as store:
        assert store.steps() == [1, 3]
