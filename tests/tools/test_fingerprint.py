"""`kv-dump fingerprint`: the same for equal tensors in any form, as the program in the docs
computes it, and another one for any difference."""

import hashlib
import re

import numpy as np
import pytest
import torch
from cairn_testing import damage
from dtensors import sharded
from ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

import cairn
from tool_programs import REPOSITORY, into_store, run_program

DTYPES = {"torch." + name: name for name in ("float32", "bfloat16", "int64", "bool", "float16")}


def documented():
    """The functions that docs/fingerprint.md prints."""
    pytest.importorskip("xxhash")
    page = (REPOSITORY / "docs/fingerprint.md").read_text()
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    return names["fingerprint"]


def model():
    """Tensors of one and of several blocks, whose rows divide a page or not."""
    generator = torch.Generator().manual_seed(3)
    return {
        "wte.weight": torch.randn(3000, 768, generator=generator),  # blocks begin within pages
        "up.weight": torch.randn(2048, 1024, generator=generator),
        "stack": torch.randn(3, 700, 1000, generator=generator),
        "half": torch.randn(40, 40, generator=generator).to(torch.bfloat16),
        "long row": torch.randn(2, 1_200_000, generator=generator),
        "ids%\n": torch.arange(70_001),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "ü": torch.ones(3, dtype=torch.float16),
    }


def expected(tensors, kind="xxh3"):
    return documented()(
        {
            name: (
                DTYPES[str(tensor.dtype)],
                tuple(tensor.shape),
                tensor.element_size(),
                tensor.reshape(-1).view(torch.uint8).numpy().tobytes(),
            )
            for name, tensor in tensors.items()
        },
        kind,
    )


def fingerprint(address, *words):
    return run_program("kv-dump", "fingerprint", address, *words, status=0).out.strip()


def read_bytes(address, *words):
    words = "fingerprint", address, *words, "--json"
    return run_program("kv-dump", *words, status=0).json()["read_bytes"]


def test_the_page_defines_it(tmp_path):
    tensors = model()
    store = into_store(tmp_path / "store", {**tensors, "lr": 0.1})
    assert fingerprint(store) == expected(tensors)
    assert fingerprint(store, "--sha256") == expected(tensors, "sha256")
    assert read_bytes(store) == 0  # every chunk is a block
    assert read_bytes(store, "--sha256") == sum(tensor.nbytes for tensor in tensors.values())
    found = run_program("kv-dump", "fingerprint", store, "--json", "--list", status=0).json()
    assert (found["tensors"], found["values_left_out"]) == (len(tensors), 1)
    assert found["listing"] == run_program("kv-dump", "fingerprint", store, "--list").out
    assert "ids%25%0A\n" in found["listing"]
    listing = run_program("kv-dump", "fingerprint", store, "--list", "--sha256").out
    digest = hashlib.sha256(listing.encode()).hexdigest()
    assert fingerprint(store, "--sha256") == f"sha256:{digest}"


@pytest.mark.parametrize(
    "tuning, most_read",
    [
        ({"chunk_bytes": 1 << 20}, 0.8),
        ({"chunk_bytes": 1 << 18}, 0.8),
        ({"chunk_bytes": 16 << 20}, 0.8),
        ({"chunk_bytes": 5000}, 1),
        ({"compress": True}, 0),
    ],
)
def test_it_does_not_depend_on_chunks(tmp_path, tuning, most_read):
    tensors = model()
    store = tmp_path / "store"
    with cairn.open(store, mode="a") as opened:
        opened.save(1, tensors, tuning=cairn.SaveTuning(**tuning))
    assert fingerprint(store) == expected(tensors)
    assert fingerprint(store, "--sha256") == expected(tensors, "sha256")
    assert read_bytes(store) <= most_read * sum(tensor.nbytes for tensor in tensors.values())
    # Rows of 4 KiB: blocks of several chunks, or a part of one, are combined from page digests.
    if tuning.get("chunk_bytes") != 5000:
        assert read_bytes(store, "up.weight") == 0


def test_it_does_not_depend_on_pages_and_deltas(tmp_path):
    tensors = model()
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in range(1, 5):
            tensors["up.weight"][step * 100, 5] += 1
            tensors["half"] += 1
            store.save(step, tensors, tuning=cairn.SaveTuning(deltas=True))
    assert fingerprint(tmp_path / "store") == expected(tensors)
    assert read_bytes(tmp_path / "store") == 0


def save_parts(rank, path):
    tensors = model()
    mesh = init_device_mesh("cpu", (2,))
    columns = sharded(tensors.pop("half"), mesh, (Shard(1),))
    rows = {name: tensors.pop(name) for name in ("wte.weight", "up.weight")}
    rows = {name: sharded(tensor, mesh, (Shard(0),)) for name, tensor in rows.items()}
    with cairn.open(path, mode="a") as store:
        store.save(1, {**tensors, **rows, "half": columns})


def test_it_does_not_depend_on_the_parts_of_ranks(tmp_path):
    store = tmp_path / "store"
    run_on_ranks(save_parts, store, world_size=2)
    assert fingerprint(store) == expected(model())
    assert read_bytes(store, "up.weight") == 0  # the parts have whole pages
    assert read_bytes(store, "half") == 3200
    assert 0 < read_bytes(store, "wte.weight") <= 8 << 20  # two blocks next to the cut


def test_patterns_and_names(tmp_path):
    tensors = {"a": torch.ones(3), "b": torch.zeros(4)}
    plain = into_store(tmp_path / "plain", tensors)
    nested = into_store(tmp_path / "nested", {"model": dict(reversed(tensors.items())), "n": 1})
    assert fingerprint(nested) != fingerprint(plain)
    assert fingerprint(nested, "--under", "model") == fingerprint(plain) == expected(tensors)
    assert fingerprint(plain, "a") == expected({"a": tensors["a"]})
    assert fingerprint(plain, "!b") == fingerprint(plain, "a")
    refused = run_program("kv-dump", "fingerprint", plain, "absent", status=2)
    assert "no tensor matches" in refused.err


def test_tied_weights_and_views_count_under_each_name(tmp_path):
    weight = torch.randn(300, 200)
    tensors = {"a": weight, "b": weight, "t": weight.t(), "part": weight[10:20]}
    store = into_store(tmp_path / "store", tensors)
    assert fingerprint(store) == expected(tensors)


def test_any_difference_changes_it(tmp_path):
    base = {"a": torch.zeros(6), "b": torch.ones(2)}
    states = [
        base,
        {**base, "a": torch.zeros(2, 3)},
        {**base, "a": torch.zeros(6, dtype=torch.int32)},
        {**base, "a": -torch.zeros(6)},
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"]},
        {**base, "c": torch.zeros(0)},
    ]
    store = into_store(tmp_path / "store", *states)
    found = {fingerprint(f"{store}@{step}", *kind) for step in range(1, len(states) + 1)
             for kind in ([], ["--sha256"])}  # fmt: skip
    assert len(found) == 2 * len(states)


def test_damage_is_an_error_where_bytes_are_read(tmp_path):
    w = np.arange(5000, dtype=np.float32)
    store = into_store(tmp_path / "store", {"w": w})
    before = fingerprint(store)
    damage(store, w[100:110].tobytes())
    assert fingerprint(store) == before
    assert "key w" in run_program("kv-dump", "fingerprint", store, "--sha256", status=2).err
