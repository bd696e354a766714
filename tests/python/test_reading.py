"""Reading parts: patterns, slices, mapped memory, devices."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, flip_byte, segment_files, steps_of

import cairn
from cairn._opened.map_checks import MapChecks


@pytest.fixture
def model_store(store):
    state = {
        "model": {
            "layers": {
                str(i): {"wq": torch.full((4,), float(i)), "wk": torch.full((2,), -float(i))}
                for i in range(12)
            },
            "wte.weight": torch.arange(6.0).view(3, 2),
        },
        "opt": [{"lr": 0.1}, {"lr": 0.2}, torch.ones(2)],
        "epoch": 3,
    }
    store.save(1, state)
    return store, state


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("model.layers.1", ["model.layers.1.wq", "model.layers.1.wk"]),
        (["epoch", "opt.1"], ["opt.1.lr", "epoch"]),
        (["opt", "!opt.*.lr"], ["opt.2"]),
        (("model.layers.[23].*", "!**.wk"), ["model.layers.2.wq", "model.layers.3.wq"]),
    ],
)
def test_patterns_select_keys(model_store, patterns, expected):
    store, state = model_store
    everything = store.read(flat=True)
    read = store.read(patterns, flat=True)
    assert list(read) == expected
    assert_same(read, {fqn: everything[fqn] for fqn in expected})
    assert list(store.keys(pattern=patterns)) == expected


def test_a_part_is_nested_as_the_whole(model_store):
    store, state = model_store
    layer = store.read("model.layers.1")
    assert_same(layer, {"model": {"layers": {"1": state["model"]["layers"]["1"]}}})
    # A list of which only some elements are taken cannot stay a list.
    assert store.read("opt.1") == {"opt": {1: {"lr": 0.2}}}


def test_nothing_selected_is_not_found_for_read_and_empty_for_keys(model_store):
    store, _ = model_store
    with pytest.raises(cairn.NotFound, match="nope"):
        store.read("nope")
    assert store.keys(pattern="nope") == {}
    with pytest.raises(cairn.Invalid):
        store.read("model.[")


@pytest.mark.parametrize("chunk_bytes", [None, 64])
@pytest.mark.parametrize(
    ("ranges", "index"),
    [
        ([(1, 3), (0, 5), (2, 2)], np.s_[1:3, 0:5, 2:2]),
        ([(4, 6)], np.s_[4:6]),
        ([], np.s_[:]),
        ([slice(None), slice(-3, None), slice(1, 100)], np.s_[:, -3:, 1:100]),
        ([slice(None), 2], np.s_[:, 2]),
        ([-1, (1, 4), 0], np.s_[-1, 1:4, 0]),
        ([1, 2, 3], np.s_[1, 2, 3]),
    ],
)
def test_slices(store, chunk_bytes, ranges, index):
    tensor = torch.arange(6 * 7 * 8, dtype=torch.int32).view(6, 7, 8)
    store.save(
        1,
        {"t": tensor, "a": tensor.numpy().copy()},
        tuning=cairn.SaveTuning(chunk_bytes=chunk_bytes),
    )
    assert_same(store.read_slice("t", ranges), tensor[index])
    assert_same(store.read_slice("a", ranges), np.asarray(tensor.numpy()[index]))


def test_a_slice_is_read_into_given_memory(store):
    tensor = torch.arange(48.0).view(6, 8)
    store.save(1, {"t": tensor})
    out = torch.zeros(8, 4).t()[:, ::2]
    assert store.read_slice("t", [(1, 5), (3, 7)], out=out) is out
    assert torch.equal(out, tensor[1:5, 3:7])

    big_endian = np.zeros((2, 8), ">f4")
    store.read_slice("t", [(0, 2)], out=big_endian)
    assert np.array_equal(big_endian, tensor[:2].numpy())

    for bad in (torch.zeros(4, 5), torch.zeros(4, 4, dtype=torch.float64)):
        with pytest.raises(cairn.Invalid, match="in the target"):
            store.read_slice("t", [(1, 5), (3, 7)], out=bad)


@pytest.mark.parametrize(
    "ranges", [[(0, 9)], [(3, 2)], [(-1, 2)], [slice(0, 4, 2)], [6], [(0, 1)] * 3, [(1, 2, 3)]]
)
def test_bad_slices_are_refused(store, ranges):
    store.save(1, {"t": torch.zeros(6, 8)})
    with pytest.raises(cairn.Invalid, match="'t'"):
        store.read_slice("t", ranges)


def test_slices_of_what_is_no_tensor(store):
    store.save(1, {"t*": torch.ones(2), "tx": torch.zeros(2), "v": 3})
    assert torch.equal(store.read_slice("t*", []), torch.ones(2))
    with pytest.raises(cairn.Invalid, match="plain value"):
        store.read_slice("v", [])
    with pytest.raises(cairn.NotFound) as caught:
        store.read_slice("t", [])
    assert (caught.value.key, caught.value.step) == ("t", 1)


def test_slices_of_many_tensors_at_once(store):
    tensors = {f"w.{i}": torch.randn(20 + i, 30) for i in range(50)}
    store.save(1, {**tensors, "a": np.arange(100), "v": 3})
    boxes = {fqn: [slice(None), (5, 10 + i % 7)] for i, fqn in enumerate(reversed(tensors))}
    got = store.read_slices({**boxes, "a": [(7, 9)]})
    assert list(got) == [*boxes, "a"]
    for i, fqn in enumerate(reversed(tensors)):
        assert_same(got[fqn], tensors[fqn][:, 5 : 10 + i % 7])
    assert_same(got["a"], np.arange(7, 9))
    assert store.read_slices({}) == {}
    with pytest.raises(cairn.NotFound, match="'w.50'"):
        store.read_slices({"w.1": [], "w.50": []})
    with pytest.raises(cairn.Invalid, match="plain value"):
        store.read_slices({"w.1": [], "v": []})


def mapping_of(address: int) -> str:
    """The line of /proc/self/maps that contains the address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line
    return ""


def test_mapped_tensors_are_the_file_itself(store):
    state = {
        "t": torch.randn(300, 500),
        "b": torch.randn(4, 5).to(torch.bfloat16),
        "a": np.arange(1000),
        "empty": torch.empty(0),
        "v": 1,
    }
    store.save(1, state)

    read = store.read(mmap=True)

    assert_same(read, state)
    for address in (read["t"].data_ptr(), read["b"].data_ptr(), read["a"].ctypes.data):
        assert "/segments/" in mapping_of(address)
    with pytest.raises(ValueError, match="read-only"):
        read["a"][0] = 1


@pytest.mark.filterwarnings("error")
def test_mapping_warns_of_nothing_and_outlives_step_and_store(path):
    tensor = torch.randn(100, 100)
    store = cairn.open(path, mode="a")
    store.save(1, {"t": tensor, "view": tensor[3]})
    read = store.read(mmap=True, verify=False)
    store.delete(1)
    store.close()
    assert torch.equal(read["t"], tensor)
    assert torch.equal(read.pop("view"), tensor[3])


@pytest.mark.filterwarnings("error")
def test_lazily_verified_tensors_are_checked_in_the_background(store):
    state = {"t": torch.randn(3000, 1000), "a": np.arange(1000), "small": torch.ones(3)}
    store.save(1, state)
    read = store.read(mmap=True, verify="lazy")
    assert "/segments/" in mapping_of(read["t"].data_ptr())
    store.delete(1)  # the check needs only the mapping
    assert store.wait_verified()
    assert store.wait_verified(timeout=0)
    assert_same(read, state)


def test_a_background_check_has_the_lowest_priority_until_someone_waits():
    priorities: list[int] = []
    has_help = threading.Event()

    class Check:
        def run(self):
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            if len(priorities) == 1:
                assert has_help.wait(600)
            else:
                has_help.set()

    checks = MapChecks()
    checks.start(Check())
    assert checks.wait()
    assert sorted(priorities) == [os.getpriority(os.PRIO_PROCESS, 0), 19]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.wait_verified(),
        lambda store: store.keys(),
        lambda store: store.save(3, {"t": torch.ones(3)}),
        lambda store: store.close(),
    ],
    ids=["wait", "read", "save", "close"],
)
def test_damage_that_a_lazy_check_finds_is_raised_once_by_the_next_call(path, call):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"t": torch.randn(3000, 1000)})
    segment = max(segment_files(path), key=lambda file: file.stat().st_size)
    flip_byte(segment, 9_000_000)
    store = cairn.open(path, mode="a")
    with pytest.warns(RuntimeWarning, match="a mapped tensor is damaged"):
        assert store.read(mmap=True, verify="lazy")["t"].shape == (3000, 1000)
        for thread in store.opened.map_checks._threads:
            thread.join()
    with pytest.raises(cairn.Corrupt, match="digest") as error:
        call(store)
    assert error.value.key == "t"
    store.close()
    assert steps_of(path) == [1]
