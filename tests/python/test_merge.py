"""`Store.merge` compared with torch, bit for bit, and its errors and memory."""

import threading

import pytest
import torch
from cairn_testing import assert_same_numbers, bits, more_memory
from ranks import run_on_ranks

import cairn
from cairn import Conflict, Invalid, NotFound

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture
def store(tmp_path):
    with cairn.open(tmp_path / "store", mode="a", grace=0) as opened:
        yield opened


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


def test_errors(store):
    store.save(1, {"w": torch.ones(4), "v": 1})
    store.save(2, {"w": torch.zeros(4)}, tuning=cairn.SaveTuning(incremental=False))
    store.save(3, {"w": torch.zeros(4), "v": 3}, tuning=cairn.SaveTuning(incremental=False))
    with pytest.raises(Invalid, match="v") as raised:
        store.merge([1, 2], into=9)
    assert raised.value.key == "v"
    with pytest.raises(Invalid, match="two steps"):
        store.merge([1], into=9)
    with pytest.raises(Invalid, match="weights"):
        store.merge([1, 3], into=9, weights=[])
    with pytest.raises(Invalid, match="sum"):
        store.merge([1, 3], into=9, weights=[1, float("nan")])
    with pytest.raises(NotFound):
        store.merge([1, 8], into=9)
    with pytest.raises(Conflict):
        store.merge([1, 3], into=2)
    assert store.steps() == [1, 2, 3]
    store.merge([1, 3], into=1, overwrite=True)
    assert torch.equal(store.read(step=1)["w"], torch.full((4,), 0.5))


def memory_of_a_merge(rank, path) -> int:
    with cairn.open(path, mode="a") as store:
        store.merge([3, 4], into=5)
        more = more_memory(lambda: store.merge([1, 2], into=6))
        assert store.step_info(6).written_bytes == 200 << 20
    return more


@pytest.mark.parametrize("chunk_bytes", [None, 1 << 30], ids=["default chunks", "one chunk"])
def test_memory_is_bounded(tmp_path, chunk_bytes):
    with cairn.open(tmp_path / "store", mode="a") as store:
        tuning = cairn.SaveTuning(incremental=False, chunk_bytes=chunk_bytes)
        for step in (1, 2):
            store.save(step, {"w": torch.randn(100 << 20).bfloat16()}, tuning=tuning)
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
