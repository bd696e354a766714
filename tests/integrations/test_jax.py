"""`cairn.jax` with real JAX on eight CPU devices, in one process."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import ml_dtypes  # noqa: E402
import torch  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec as P  # noqa: E402
from ranks import run_on_ranks  # noqa: E402
from trainer_runs import train  # noqa: E402

import cairn  # noqa: E402
import cairn.jax  # noqa: E402
from cairn import Invalid, NotFound  # noqa: E402

DTYPES = (
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32",
    "complex64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "int4", "uint4", "int2", "uint2",
)


def mesh_of(**sizes: int) -> Any:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes))


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def random_array(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    if np.dtype(dtype).name in ("int2", "uint2", "int4", "uint4", "bool"):
        numbers = np.random.default_rng(seed).integers(0, 2, shape)
        return numbers.astype(dtype)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 100, count, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def sharded(array: np.ndarray, mesh: Any, *spec: Any) -> Any:
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def like(array: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_round_trips_between_shardings(path, dtype):
    array = random_array(dtype, 16, 24)
    mesh = mesh_of(x=4, y=2)
    saved = {"sharded": sharded(array, mesh, "x", "y"), "whole": jnp.asarray(array),
             "numpy": array, "scalar": jnp.asarray(array)[3, 4]}

    cairn.jax.save(path, 1, saved)
    target = NamedSharding(mesh_of(z=8), P(None, "z"))
    loaded = cairn.jax.load(path, {**saved, "sharded": like(saved["sharded"], target)})

    assert loaded["sharded"].sharding == target
    for name in ("sharded", "whole", "numpy"):
        assert loaded[name].dtype == array.dtype and bits(loaded[name]) == bits(array), name
    assert type(loaded["numpy"]) is np.ndarray and loaded["scalar"].shape == ()
    assert bits(loaded["scalar"]) == bits(array[3, 4])


SPECS = [(), ("x",), ("y",), ("x", "y"), ("y", "x"), (None, "x"), (("x", "y"),), (("y", "x"), None)]


@pytest.mark.parametrize("save_spec", SPECS, ids=str)
def test_any_mesh_loads_what_any_mesh_has_saved(path, save_spec):
    array = random_array("float32", 16, 8, 3)
    report = cairn.jax.save(path, 1, {"a": sharded(array, mesh_of(x=4, y=2), *save_spec)})
    assert report.logical_bytes == report.written_bytes == array.nbytes  # one of equal shards

    for mesh in (mesh_of(x=2, y=4), mesh_of(x=8, y=1), mesh_of(x=2, y=2)):
        for spec in SPECS:
            target = NamedSharding(mesh, P(*spec))
            loaded = cairn.jax.load(path, {"a": like(array, target)})["a"]
            assert loaded.sharding == target and loaded.committed
            assert bits(loaded) == bits(array)
            for shard in loaded.addressable_shards:
                assert bits(shard.data) == bits(array[shard.index])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    params: Any
    step: Any
    name: str = dataclasses.field(metadata={"static": True}, default="a")


Moments = collections.namedtuple("Moments", ["mu", "nu"])


@jax.tree_util.register_pytree_with_keys_class
class Registered:
    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Registered:
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class WithoutKeys(Registered):
    def tree_flatten(self) -> Any:
        return (self.value,), None


def test_leaves_have_the_names_of_their_paths(path):
    def tree(number: int) -> Any:
        array = jnp.full((2, 2), number, jnp.float32)
        moments = (Moments(array + 1, array + 2), Moments((), None), ())
        return TrainState(
            {"Dense_0": {"kernel": array}, "by_number": {3: array + 3}, "lists": [[], [array + 4]],
             "classes": [Registered(array + 5), WithoutKeys(array + 6)], "moments": moments},
            step=number,
        )

    cairn.jax.save(path, 1, tree(10))
    loaded = cairn.jax.load(path, tree(0))

    with cairn.open(path) as store:
        assert list(store.keys()) == [
            "params.Dense_0.kernel", "params.by_number.3", "params.classes.0.value",
            "params.classes.1.0", "params.lists.1.0", "params.moments.0.mu",
            "params.moments.0.nu", "params.moments.1.nu", "step",
        ]
    expected = tree(10)
    assert jax.tree.structure(loaded) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(loaded), jax.tree.leaves(expected)):
        assert type(got) is type(want) and bits(got) == bits(want)


def test_plain_values_are_returned_as_they_were_saved(path):
    values = {"int": 3, "float": 0.1, "none": None, "text": "x", "bytes": b"y", "bool": True,
              "np": np.float32(2.5)}
    cairn.jax.save(path, 1, values)

    loaded = cairn.jax.load(path, {**values, "int": 0, "float": 9.0, "text": "", "none": None})

    assert loaded == values and type(loaded["bool"]) is bool
    assert cairn.jax.load(path) == values


def test_without_a_template_the_nesting_is_that_of_the_step(path):
    tree = {"a": [jnp.ones(3, jnp.bfloat16), {"b": np.arange(4, dtype=np.int64)}], "c": (1, 2)}
    cairn.jax.save(path, 1, tree)

    loaded = cairn.jax.load(path, step=1)

    assert isinstance(loaded["a"][0], jax.Array) and loaded["a"][0].dtype == jnp.bfloat16
    # JAX would make int32 of it.
    assert type(loaded["a"][1]["b"]) is np.ndarray and loaded["a"][1]["b"].dtype == np.int64
    assert loaded["c"] == [1, 2]


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_keys_continue_their_sequence(path, implementation):
    mesh = mesh_of(x=8)
    keys = jax.random.split(jax.random.key(7, impl=implementation), 8)
    tree = {"key": jax.random.key(5, impl=implementation),
            "keys": jax.device_put(keys, NamedSharding(mesh, P("x"))),
            "old": jax.random.PRNGKey(3)}
    cairn.jax.save(path, 1, tree)

    other = jax.tree.map(jnp.zeros_like, tree["old"])
    template = {"key": jax.random.key(0, impl=implementation), "old": other,
                "keys": like(keys, NamedSharding(mesh, P()))}
    loaded = cairn.jax.load(path, template)

    for name in tree:
        assert loaded[name].dtype == tree[name].dtype
    assert bits(jax.random.normal(loaded["key"], 5)) == bits(jax.random.normal(tree["key"], 5))
    assert bits(jax.random.key_data(loaded["keys"])) == bits(jax.random.key_data(keys))
    assert loaded["keys"].sharding.is_equivalent_to(NamedSharding(mesh, P()), 1)
    with cairn.open(path) as store:
        assert store.read("key.impl")["key"]["impl"] == implementation
    wrong = "rbg" if implementation != "rbg" else "unsafe_rbg"
    with pytest.raises(Invalid, match="key of"):
        cairn.jax.load(path, {**template, "key": jax.random.key(0, impl=wrong)})


def test_a_save_in_the_background_has_copied_the_arrays(path):
    mesh = mesh_of(x=8)
    array = np.random.default_rng(0).random((512, 256), np.float32)
    tree = {"w": sharded(array, mesh, "x"), "b": jnp.ones(5)}
    double = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)

    with cairn.open(path, mode="a") as store:
        handle = cairn.jax.save_async(store, 1, tree)
        tree = double(tree)
        assert handle.result().step == 1
        second = cairn.jax.save_async(store, 2, tree, metrics={"loss": 1.0}).result()
        assert second.chunks_reused == 0
        assert bits(cairn.jax.load(store, tree, 1)["w"]) == bits(array)
        assert bits(cairn.jax.load(store, tree)["w"]) == bits(array * 2)
        assert store.step_info(2).metrics == {"loss": 1.0}


def test_equal_shards_of_a_loaded_array_may_be_donated(path):
    mesh = mesh_of(x=8)
    array = random_array("float32", 64, 64)
    cairn.jax.save(path, 1, {"a": array})
    loaded = cairn.jax.load(path, {"a": like(array, NamedSharding(mesh, P()))})["a"]

    parts = [shard.data for shard in loaded.addressable_shards]
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    results = [overwrite(part) for part in parts[:4]]

    assert all(bits(part) == bits(array) for part in parts[4:])
    assert all((np.asarray(result) == -1).all() for result in results)


def test_uncommitted_arrays_of_a_template_remain_so(path):
    mesh = mesh_of(x=8)
    tree = {"w": sharded(random_array("float32", 8, 4), mesh, "x"), "count": jnp.ones(4)}
    cairn.jax.save(path, 1, tree)

    loaded = cairn.jax.load(path, tree)

    assert not loaded["count"].committed
    jax.jit(lambda w, count: w * count)(**loaded)  # arrays of two device sets would be refused


# Errors.


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (lambda: jnp.ones(3, "float8_e4m3b11fnuz"), "float8_e4m3b11fnuz"),
        (lambda: np.ones(3, ml_dtypes.float4_e2m1fn), "float4_e2m1fn"),
        (lambda: object(), "object"),
    ],
)
def test_what_cannot_be_saved_is_named(path, leaf, message):
    with pytest.raises(Invalid, match=message) as raised:
        cairn.jax.save(path, 1, {"good": jnp.ones(2), "bad": {"leaf": leaf()}})
    assert raised.value.key == "bad.leaf"
    assert not Path(path).exists(), "no empty store is left"


def test_arrays_without_values_are_refused(path):
    array = jnp.ones(5)
    array.delete()
    with pytest.raises(Invalid, match="deleted"):
        cairn.jax.save(path, 1, {"a": array})
    with pytest.raises(Invalid, match="tracer"):
        jax.jit(lambda x: cairn.jax.save(path, 1, {"a": x}))(jnp.ones(3))
    with pytest.raises(Invalid, match="single leaf"):
        cairn.jax.save(path, 1, jnp.ones(3))


def test_a_template_of_which_nothing_is_loaded_is_refused(path):
    cairn.jax.save(path, 1, {"a": jnp.ones(2)})
    with pytest.raises(NotFound, match="no key of the state"):
        cairn.jax.load(path, {"b": jnp.ones(2)}, strict=False)


def test_all_mismatches_of_a_template_are_one_error(path):
    cairn.jax.save(path, 1, {"a": jnp.ones(2), "b": jnp.ones(2), "c": 1})
    with pytest.raises(Invalid, match="2 keys are refused: 'a' .*; 'b' .*"):
        cairn.jax.load(path, {"a": jnp.ones(3), "b": 1, "c": 1})


def test_a_template_that_does_not_fit_is_refused(path):
    tree = {"a": jnp.ones((4, 2)), "n": 3, "long": np.arange(3)}
    cairn.jax.save(path, 1, tree)

    for error, key, changed in (
        (NotFound, "z", {**tree, "z": jnp.ones(1)}),
        (Invalid, "n", {"a": tree["a"], "long": tree["long"]}),
        (Invalid, "a", {**tree, "a": jnp.ones((2, 4))}),
        (Invalid, "a", {**tree, "a": jnp.ones((4, 2), jnp.bfloat16)}),
        (Invalid, "a", {**tree, "a": 3}),
        (Invalid, "n", {**tree, "n": jnp.ones(())}),
        (Invalid, "long", {**tree, "long": jax.ShapeDtypeStruct((3,), np.int64)}),
    ):
        with pytest.raises(error) as raised:
            cairn.jax.load(path, changed)
        assert raised.value.key == key
    with pytest.raises(NotFound):
        cairn.jax.load(path, tree, step=2)
    kept = cairn.jax.load(path, {"a": tree["a"], "z": "kept"}, strict=False)
    assert kept["z"] == "kept" and bits(kept["a"]) == bits(tree["a"])


# torch.


def read_shards(rank: int, path: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    expected = torch.arange(16 * 12, dtype=torch.float32).view(16, 12)
    with cairn.open(path) as store:
        for placement in (Shard(0), Shard(1), Replicate()):
            target = distribute_tensor(torch.zeros(16, 12), mesh, [placement])
            store.load({"w": target, "half": torch.zeros(7, dtype=torch.bfloat16)}, strict=False)
            assert torch.equal(target.full_tensor(), expected)


def test_torch_ranks_read_the_shards_of_jax(path):
    array = np.arange(16 * 12, dtype=np.float32).reshape(16, 12)
    mesh = mesh_of(x=4, y=2)
    cairn.jax.save(path, 1, {"w": sharded(array, mesh, "x", "y"), "half": jnp.ones(7, jnp.bfloat16),
                             "int4": jnp.ones(4, "int4")})

    run_on_ranks(read_shards, path)
    with cairn.open(path) as store:
        read = store.read()
        assert torch.equal(read["w"], torch.from_numpy(array))
        assert torch.equal(read["half"], torch.ones(7, dtype=torch.bfloat16))
        assert read["int4"].view(torch.uint8).tolist() == [1, 1, 1, 1]


def write_shards(rank: int, path: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2))
    tensor = torch.arange(24 * 10, dtype=torch.float32).view(24, 10).bfloat16()
    state = {"model": {"w": distribute_tensor(tensor, mesh, [Shard(0), Shard(1)]),
                       "layers": [{"b": torch.arange(6.0)}]}, "epoch": 4}
    with cairn.open(path, mode="a") as store:
        store.save(1, state)


def test_jax_reads_the_shards_of_torch_ranks(path):
    run_on_ranks(write_shards, path)

    target = NamedSharding(mesh_of(x=8), P("x"))
    template = {"w": jax.ShapeDtypeStruct((24, 10), jnp.bfloat16, sharding=target),
                "layers": [{"b": jnp.zeros(6)}]}
    loaded = cairn.jax.load(path, template, prefix="model")

    assert loaded["w"].sharding == target
    expected = np.arange(240).reshape(24, 10).astype(jnp.bfloat16)
    assert bits(loaded["w"]) == bits(expected)
    assert bits(loaded["layers"][0]["b"]) == bits(np.arange(6, dtype=np.float32))
    assert cairn.jax.load(path, {"model": template, "epoch": 0})["epoch"] == 4


def test_tied_tensors_of_torch_are_loaded_under_both_names(path):
    weight = torch.arange(12.0).view(3, 4)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"embed": weight, "head": weight, "row": weight[1]})

    zeros = jnp.zeros((3, 4))
    loaded = cairn.jax.load(path, {"embed": zeros, "head": zeros, "row": jnp.zeros(4)})

    assert bits(loaded["head"]) == bits(loaded["embed"]) == bits(weight.numpy())
    assert bits(loaded["row"]) == bits(weight[1].numpy())


# A job that is killed.


_TRAIN = """
import sys, jax, jax.numpy as jnp, cairn, cairn.jax
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("x",))
w = jax.device_put(jnp.ones((64, 32)) * 0.1, NamedSharding(mesh, P("x")))
# The compiler rounds differently for other shardings, so those of the first state are as later.
key = jax.device_put(jax.random.key(0), NamedSharding(mesh, P()))
state = {"w": w, "m": w * 0, "key": key, "step": 0}

@jax.jit
def update(w, m, key):
    key, sub = jax.random.split(key)
    gradient = jnp.sin(w) + jax.random.normal(sub, w.shape, w.dtype) * 0.01
    m = 0.9 * m + gradient
    return w - 0.01 * m, m, key

with cairn.open(sys.argv[1], mode="a") as store:
    if store.steps():
        state = cairn.jax.load(store, state)
    while state["step"] < 12:
        w, m, key = update(state["w"], state["m"], state["key"])
        state = {"w": w, "m": m, "key": key, "step": state["step"] + 1}
        cairn.jax.save_async(store, state["step"], state)
        print("step", state["step"], "loss", float(w.sum()), flush=True)
"""


def test_a_killed_job_resumes_bit_for_bit(path, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(_TRAIN)
    train(program, path, kill_at=5)
    train(program, path)
    train(program, tmp_path / "uninterrupted")

    with cairn.open(path) as resumed, cairn.open(tmp_path / "uninterrupted") as uninterrupted:
        assert resumed.steps()[-1] == uninterrupted.steps()[-1] == 12
        for a, b in zip(*(jax.tree.leaves(cairn.jax.load(s)) for s in (resumed, uninterrupted))):
            assert bits(a) == bits(b) if hasattr(a, "shape") else a == b
