"""Following a store: waiting for steps, and updating a state in place."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from cairn_testing import assert_same
from ranks import run_on_ranks

import cairn

PAGE = 64 << 10


def make_state(seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    model = {
        f"layers.{i}.weight": torch.randn(256, 1024, generator=generator, dtype=torch.float32)
        for i in range(8)
    }
    return {
        "model": model,
        "tied": model["layers.0.weight"],
        "scale": np.float32(1.5),
        "order": [1, {"name": "run"}],
        "lr": 0.0,
    }


def test_pull_reads_only_what_differs(store):
    trained, served = make_state(), make_state()
    store.save(1, trained)
    trained["model"]["layers.3.weight"][17, 5] += 1
    trained["model"]["layers.6.weight"][0, 0] += 1
    trained["lr"] = -0.0  # equal, but with other bits
    store.save(2, trained)
    memory = {key: tensor.data_ptr() for key, tensor in served["model"].items()}

    report = store.pull(served, since=1)

    assert (report.step, report.since) == (2, 1)
    assert report.changed == ("lr", "model.layers.3.weight", "model.layers.6.weight")
    assert report.compared_bytes == 8 * (1 << 20)
    assert 2 * PAGE <= report.bytes_read <= 3 * PAGE
    assert_same(served, trained)
    assert memory == {key: tensor.data_ptr() for key, tensor in served["model"].items()}

    again = store.pull(served, since=2)
    assert (again.changed, again.compared_bytes, again.bytes_read) == ((), 0, 0)


def test_leaves_of_all_kinds_are_updated(store):
    def state(number: int) -> dict:
        return {
            "scalar": np.float32(number),
            "big_endian": np.full(1000, number, ">f4"),
            "strided": torch.full((300, 200), float(number)).t(),
            "same": torch.ones(5),
            "list": [number, (number, "text")],
            "empty": torch.zeros(0, 3),
        }

    store.save(1, state(1))
    store.save(2, state(2))
    served = state(1)
    array, strided = served["big_endian"], served["strided"]

    report = store.pull(served, since=1)

    assert set(report.changed) == {"scalar", "big_endian", "strided", "list.0", "list.1.0"}
    assert served["big_endian"] is array and served["strided"] is strided
    assert np.array_equal(array, state(2)["big_endian"])
    served["big_endian"] = array.astype("f4")  # the form that assert_same compares
    assert_same(served, state(2))


def test_missing_steps_and_keys_are_named(store):
    store.save(1, {"a": torch.ones(3)})
    store.save(2, {"a": torch.ones(3), "b": torch.ones(2)})
    served = {"a": torch.ones(3)}
    with pytest.raises(cairn.NotFound, match="41"):
        store.pull(served, since=41)
    with pytest.raises(cairn.Invalid, match="lacks 'b'"):
        store.pull(served, since=1)
    report = store.pull(served, since=1, strict=False)
    assert report.unexpected == ("b",) and report.changed == ()
    served = {"a": torch.ones(3), "b": torch.zeros(2)}
    # A key that the base lacks is read completely.
    assert store.pull(served, since=1, keys=["a", "b"]).changed == ("b",)
    assert served["b"].tolist() == [1, 1]
    with pytest.raises(cairn.Invalid, match="-1"):
        store.pull(served, since=-1)


def test_keys_that_match_nothing_are_an_error(store):
    for step in (1, 2):
        store.save(step, {"a": torch.ones(3) * step})
    for arguments in ({"keys": "layer.*"}, {"keys": ["b", "c"]}, {"prefix": "model"}):
        with pytest.raises(cairn.NotFound, match="no key that matches"):
            store.pull({"a": torch.ones(3)}, since=1, strict=False, **arguments)


def test_tied_tensors_are_updated_by_page_and_all_names_are_reported(store):
    def state(number: int) -> dict:
        weight = torch.arange(10 * PAGE // 4, dtype=torch.float32)
        weight[5] += number
        return {"out": weight, "embed": weight, "other": torch.ones(PAGE)}

    store.save(1, state(1))
    store.save(2, state(2))
    owners = {name: info.alias_of for name, info in store.keys().items()}
    assert owners["embed"] is None and owners["out"] == "embed"
    served = state(1)
    report = store.pull(served, since=1)
    assert report.changed == ("embed", "out")
    assert report.bytes_read < 3 * PAGE and served["out"] is served["embed"]
    assert_same(served, state(2))
    # Another order of the state, with the owner first.
    served = dict(reversed(state(1).items()))
    report = store.pull(served, since=1)
    assert report.changed == ("embed", "out") and report.bytes_read < 3 * PAGE


def test_meta_tensors_are_created_even_if_nothing_differs(store):
    store.save(1, {"a": torch.arange(5.0), "b": torch.ones(3)})
    served = {"a": torch.empty(5, device="meta"), "b": torch.ones(3)}
    report = store.pull(served, since=1)
    assert served["a"].tolist() == [0, 1, 2, 3, 4] and report.changed == ()
    assert store.pull(served, since=1).bytes_read == 0


def test_a_module_is_updated_through_its_parameters(store):
    torch.manual_seed(1)
    trained = torch.nn.Sequential(torch.nn.Linear(100, 300), torch.nn.Linear(300, 10))
    served = torch.nn.Sequential(torch.nn.Linear(100, 300), torch.nn.Linear(300, 10))
    store.save(1, {"model": trained})
    store.load({"model": served})
    with torch.no_grad():
        trained[1].weight += 1
    store.save(2, {"model": trained})
    assert store.pull({"model": served}, since=1).changed == ("model.1.weight",)
    x = torch.randn(4, 100)
    assert torch.equal(served(x), trained(x))


def test_wait_returns_the_newest_step(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        assert store.wait(timeout=0) is None
        store.save(5, {"a": 1})
        assert store.wait() == 5
        assert store.wait(after=4, timeout=0) == 5
        assert store.wait(after=5, timeout=0.01) is None
        for wrong in (-1, float("nan")):
            with pytest.raises(cairn.Invalid, match="timeout"):
                store.wait(timeout=wrong)

        reader = cairn.open(tmp_path / "store")
        saver = threading.Thread(target=store.save, args=(9, {"a": 2}))
        saver.start()
        assert reader.wait(after=5, timeout=60) == 9
        saver.join()


def test_a_follower_follows_a_trainer(tmp_path):
    trained = make_state()
    with cairn.open(tmp_path / "store", mode="a", grace=0) as store:
        store.save(0, trained)
        follower = cairn.open(tmp_path / "store")
        served = make_state(1)
        follower.load(served)
        seen: list[int] = []

        def follow() -> None:
            at = 0
            while at < 20:
                newest = follower.wait(after=at, timeout=60)
                at = follower.pull(served, since=at, step=newest).step
                seen.append(at)

        thread = threading.Thread(target=follow)
        thread.start()
        for step in range(1, 21):
            trained["model"][f"layers.{step % 8}.weight"][step] += 1
            store.save(step, trained)
        thread.join(60)
        assert not thread.is_alive()
        assert seen == sorted(set(seen)) and seen[-1] == 20
        assert_same(served, trained)


def test_pull_from_a_fallback(tmp_path):
    trained, served = make_state(), make_state()
    with cairn.open(tmp_path / "far", mode="a") as far:
        far.save(1, trained)
        trained["model"]["layers.0.weight"] += 1
        far.save(2, trained)
    cairn.open(tmp_path / "near", mode="a").close()
    with cairn.open(tmp_path / "near", fallback=[str(tmp_path / "far")]) as store:
        report = store.pull(served, since=1)
    assert report.step == 2
    assert "model.layers.0.weight" in report.changed
    assert_same(served, trained)


def pull_on_ranks(rank: int, directory: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))

    def state(step: int) -> dict:
        torch.manual_seed(7)
        matrices = [torch.randn(64, 512) for _ in range(4)]
        if step == 2:
            matrices[1][40] += 1
            matrices[3] += 1
        return {
            "rows": distribute_tensor(matrices[0], mesh, [Shard(0)]),
            "columns": distribute_tensor(matrices[1], mesh, [Shard(1)]),
            "copies": distribute_tensor(matrices[2], mesh, [Replicate()]),
            "plain": matrices[3],
        }

    with cairn.open(directory, mode="a") as store:
        store.save(1, state(1))
        store.save(2, state(2))
        served = state(1)
        report = store.pull(served, since=1)
        assert report.changed == ("columns", "plain"), report
        expected = state(2)
        for key, value in served.items():
            wanted = expected[key]
            if key != "plain":
                value, wanted = value.to_local(), wanted.to_local()
            assert torch.equal(value, wanted), key


def test_ranks_pull_together(tmp_path):
    run_on_ranks(pull_on_ranks, str(tmp_path / "store"), world_size=2)
