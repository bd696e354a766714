"""Following a store: waiting for steps, and updating a state in place."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, wait_until

import cairn

PAGE = 64 << 10


def make_state(seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    model = {f"layers.{i}.weight": torch.randn(256, 1024, generator=generator) for i in range(8)}
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


def test_meta_tensors_are_created_even_if_nothing_differs(store):
    store.save(1, {"a": torch.arange(5.0), "b": torch.ones(3)})
    served = {"a": torch.empty(5, device="meta"), "b": torch.ones(3)}
    report = store.pull(served, since=1)
    assert served["a"].tolist() == [0, 1, 2, 3, 4] and report.changed == ()
    assert store.pull(served, since=1).bytes_read == 0


def test_wait_returns_the_newest_step(store, path):
    assert store.wait(timeout=0) is None
    store.save(5, {"a": 1})
    assert store.wait() == 5
    assert store.wait(after=4, timeout=0) == 5
    assert store.wait(after=5, timeout=0.01) is None
    for wrong in (-1, float("nan")):
        with pytest.raises(cairn.Invalid, match="timeout"):
            store.wait(timeout=wrong)

    reader = cairn.open(path)
    saver = threading.Thread(target=store.save, args=(9, {"a": 2}))
    saver.start()
    assert reader.wait(after=5, timeout=1200) == 9
    saver.join()


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


def count_waiting() -> int:
    """The number of threads that wait for a step."""
    names = [frame.f_code.co_name for frame in sys._current_frames().values()]
    return names.count("_await_change")


def test_a_store_is_closed_although_many_threads_wait_for_steps(path):
    cairn.open(path, mode="a").close()
    store = cairn.open(path)

    def follow():
        while True:
            store.wait(timeout=1200)

    with ThreadPoolExecutor(8) as pool:
        followers = [pool.submit(follow) for _ in range(8)]
        wait_until(lambda: count_waiting() == 8)
        store.close()
        for follower in followers:
            with pytest.raises(cairn.Invalid, match="closed"):
                follower.result(60)
