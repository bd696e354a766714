"""Steps that are made of others: `Store.edit` compared with a save of the edited state, and
`Store.merge` compared with torch."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pytest
import torch
from cairn_testing import assert_same_numbers, bits, more_memory, steps_of
from ranks import run_on_ranks

import cairn
from cairn import Conflict, Invalid, NotFound


def sample():
    tied = torch.randn(50, 20)
    return {
        "model": OrderedDict({"wte.weight": tied, "head.weight": tied, "norm": torch.ones(20)}),
        "optimizer": {"state": {0: {"exp_avg": torch.randn(50, 20)}}, "groups": [{"lr": 0.1}]},
        "step": 7,
    }


def assert_saved(store, step, expected):
    """Compares with a save of `expected`; the sources of `step` are deleted first."""
    store.delete(*(other for other in store.steps() if other != step))
    assert store.save(1000, expected).written_bytes == 0  # every chunk is found by its digest
    diff = store.diff(step, 1000)
    assert not diff.changes, diff.changes
    assert repr(store.read(step=step)) == repr(store.read(step=1000)) == repr(expected)


@pytest.mark.parametrize("is_open", [True, False], ids=["a store", "an address"])
def test_a_fork_to_another_store(store, tmp_path, is_open):
    state = sample()
    store.save(1, state, metrics={"loss": 2.0}, tags=["best"])
    path = tmp_path / "other"

    def fork(step, **arguments):
        if is_open:
            with cairn.open(path, mode="a", grace=0) as target:
                store.fork(step, to=target, **arguments)
        else:
            store.fork(step, to=path, **arguments)

    fork(1)
    fork(1, into=0)
    fork(1, into=0)  # it exists already
    store.save(2, {"w": torch.ones(3)}, tuning=cairn.SaveTuning(incremental=False))
    with pytest.raises(Conflict):
        fork(2, into=0)
    with pytest.raises(NotFound):
        fork(7)
    store.delete(1, 2)
    with cairn.open(path, mode="a", grace=0) as other:
        assert other.steps() == [0, 1]
        assert other.tags() == {}
        info = other.step_info(0)
        assert (info.metrics, info.base_step) == ({"loss": 2.0}, None)
        report = other.save(5, state, tuning=cairn.SaveTuning(base_step=0))
        assert report.written_bytes == 0
        other.delete(5)
        assert_saved(other, 0, state)


def test_a_copy_in_the_same_store_keeps_metrics_and_note(store):
    store.save(1, {"a": 1, "b": 2}, metrics={"loss": 1.0}, note="good")
    store.fork(1, into=2)
    store.edit(1, into=3)
    store.edit(1, into=4, drop="b")  # another state
    described = [(store.step_info(step).metrics, store.step_info(step).note) for step in (2, 3, 4)]
    assert described == [({"loss": 1.0}, "good")] * 2 + [({}, "")]


def test_changes_wait_for_the_save_of_their_source(store, tmp_path):
    store.save_async(1, {"w": torch.zeros(1000), "v": 1})
    store.fork(1, to=tmp_path / "other", into=9)
    assert steps_of(tmp_path / "other") == [9]
    store.save_async(2, {"w": torch.ones(1000), "v": 2})
    store.edit(2, into=3, drop="v")
    store.save_async(4, {"w": torch.ones(1000), "v": 2})
    store.merge([1, 4], into=5)
    assert store.steps() == [1, 2, 3, 4, 5]
    assert torch.equal(store.read(step=5)["w"], torch.full((1000,), 0.5))


def test_arguments_are_checked(store):
    store.save(1, sample())
    with pytest.raises(Invalid, match="graft_from"):
        store.edit(1, into=2, graft="model")
    with pytest.raises(Conflict):
        store.fork(1, into=1)
    with pytest.raises(Invalid, match="into="):
        store.fork(1)
    with pytest.raises(Invalid, match="two steps"):
        store.merge([1], into=2)
    assert store.steps() == [1]


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def mean_of(tensors, weights=None):
    """The mean that docs/merging.md defines, in torch."""
    kind = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    weights = torch.tensor(weights or [1.0] * len(tensors), dtype=torch.float64)
    weights = (weights / weights.sum()).to(kind)
    total = tensors[0].to(kind) * weights[0]
    equal = torch.ones_like(tensors[0], dtype=torch.bool)
    for tensor, weight in zip(tensors[1:], weights[1:]):
        total = total + tensor.to(kind) * weight
        equal &= bits(tensor) == bits(tensors[0])
    return torch.where(equal, tensors[0], total.to(tensors[0].dtype))


@pytest.mark.parametrize("weights", [None, [0.1, 3.0, 0.7, 1e-3]], ids=["equal", "weighted"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_mean_is_that_of_torch(store, dtype, weights):
    torch.manual_seed(3)
    tensors = [torch.randn(313, 701, dtype=torch.float64).to(dtype) for _ in range(4)]
    for step, tensor in enumerate(tensors):
        store.save(step, {"w": tensor, "empty": torch.zeros(0, 3, dtype=dtype)})
    report = store.merge(range(4), into=9, weights=weights)
    assert (report.step, report.chunks_reused) == (9, 0)
    assert report.written_bytes == report.logical_bytes == tensors[0].nbytes
    assert report.bytes_read >= 4 * tensors[0].nbytes
    assert_same_numbers(store.read(step=9)["w"], mean_of(tensors, weights))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_number_of_16_bits(store, dtype):
    # Means of every number with others of every magnitude: subnormal, infinite, NaN, ties.
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    others = [every, every.roll(1), every.flip(0), every[torch.randperm(2**16)]]
    first = torch.stack([every] * 4)
    second = torch.stack(others)
    store.save(1, {"w": first})
    store.save(2, {"w": second})
    store.merge([1, 2], into=3)
    assert_same_numbers(store.read(step=3)["w"], mean_of([first, second]))
    store.merge([1, 2], into=4, weights=[1, 1e-3])
    assert_same_numbers(store.read(step=4)["w"], mean_of([first, second], [1, 1e-3]))


def test_the_result_does_not_depend_on_the_modes_of_the_thread(store):
    # So many numbers that the calling thread computes some of them.
    tiny = [torch.tensor([2.0**-148, 2.0**-140]), torch.tensor([2.0**-149, 2.0**-141])]
    tiny = [tensor.repeat(400_000) for tensor in tiny]
    for step, tensor in enumerate(tiny):
        store.save(step, {"w": tensor, "half": (tensor * 2.0**128).half()})
    expected = {key: mean_of([store.read(step=s)[key] for s in (0, 1)]) for key in ("w", "half")}
    assert expected["w"].count_nonzero() == 800_000
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot treat subnormal numbers as zeros")
    try:
        store.merge([0, 1], into=2)
        one = torch.tensor([2.0**-140])
        assert (one * 1.0).item() == 0  # the modes of the caller are as before
    finally:
        torch.set_flush_denormal(False)
    merged = store.read(step=2)
    for key, tensor in expected.items():
        assert torch.equal(bits(merged[key]), bits(tensor))


def memory_of_a_merge(rank, path) -> int:
    with cairn.open(path, mode="a") as store:
        store.merge([3, 4], into=5)
        more = more_memory(lambda: store.merge([1, 2], into=6))
        assert store.step_info(6).written_bytes == 96 << 20
    return more


@pytest.mark.parametrize("chunk_bytes", [None, 1 << 30], ids=["default chunks", "one chunk"])
def test_memory_is_bounded(tmp_path, chunk_bytes):
    with cairn.open(tmp_path / "store", mode="a") as store:
        tuning = cairn.SaveTuning(incremental=False, chunk_bytes=chunk_bytes)
        for step in (1, 2):
            store.save(step, {"w": torch.randn(48 << 20).bfloat16()}, tuning=tuning)
        for step in (3, 4):
            store.save(step, {"w": torch.randn(1000)}, tuning=tuning)
    [more] = run_on_ranks(memory_of_a_merge, tmp_path / "store", world_size=1, has_group=False)
    # 24 MiB for the sums, the blocks of the store (32 MiB), and what reads allocate.
    assert more < (24 + 32 + 16) << 20, more


def test_other_threads_wait(store):
    tensors = {"w": torch.randn(2_000_000)}
    store.save(1, tensors)
    store.save(2, {"w": torch.randn(2_000_000)})
    thread = threading.Thread(target=store.merge, args=([1, 2],), kwargs={"into": 3})
    thread.start()
    store.save(4, tensors)
    thread.join()
    assert store.steps() == [1, 2, 3, 4]
    assert torch.equal(store.read(step=4)["w"], tensors["w"])
