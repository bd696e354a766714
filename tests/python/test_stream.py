"""`Store.stream`: the tensors of a step one after the other, in file order."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, flip_byte, more_memory, random_tensor, stored_files
from ranks import in_new_process

import cairn
from cairn import Corrupt, Invalid, NotFound

MIB = 1 << 20


def sample_state() -> dict:
    state = {f"big.{i}": random_tensor(torch.float32, MIB, seed=i) for i in range(5)}
    state["half"] = random_tensor(torch.bfloat16, 33, 65)
    state["empty"] = torch.zeros(0, 4)
    state["array"] = np.arange(100, dtype=np.float64).reshape(20, 5)
    state["scalar"] = np.int64(7)
    state["step"] = 3
    return state


@pytest.mark.parametrize("read_ahead_bytes", [0, MIB, 9 * MIB, 256 * MIB])
def test_streaming_yields_every_tensor_once(store, read_ahead_bytes):
    state = sample_state()
    store.save(1, state)

    streamed = dict(store.stream(read_ahead_bytes=read_ahead_bytes))

    del state["step"]
    assert sorted(streamed) == sorted(state)
    for fqn, tensor in state.items():
        assert_same(streamed[fqn], tensor)


def test_the_order_is_that_of_the_files(store):
    names = [f"t{i:02}" for i in range(40)]
    shuffled = [names[i] for i in np.random.default_rng(3).permutation(40)]
    with store.writer(1) as writer:
        for name in shuffled:
            writer.add(name, random_tensor(torch.float32, 5000, seed=int(name[1:])))

    assert [fqn for fqn, _ in store.stream()] == shuffled
    assert [fqn for fqn, _ in store.stream(1, ["t0*", "!t05"])] == [
        name for name in shuffled if name[1] == "0" and name != "t05"
    ]
    # What a later step has written is in another segment, before or after the first one.
    state = store.read()
    state["t07"] = torch.zeros(5000)
    state["t30"] = torch.ones(5000)
    store.save(2, state)
    streamed = [fqn for fqn, _ in store.stream()]
    assert {"t07", "t30"} in (set(streamed[:2]), set(streamed[-2:]))
    assert [fqn for fqn in streamed if fqn not in ("t07", "t30")] == [
        name for name in shuffled if name not in ("t07", "t30")
    ]
    for fqn, tensor in store.stream():
        assert_same(tensor, state[fqn])


def test_each_tensor_is_the_callers(store):
    base = torch.arange(64.0)
    store.save(1, {"a": base, "b": base[:32], "c": base})

    streamed = dict(store.stream())

    assert_same(
        {name: streamed[name] for name in "abc"}, {"a": base, "b": base[:32].clone(), "c": base}
    )
    assert len({tensor.untyped_storage().data_ptr() for tensor in streamed.values()}) == 3
    streamed["a"].zero_()
    assert_same(streamed["c"], base)


def test_a_tensor_that_the_caller_drops_is_freed_at_once(store):
    store.save(1, {f"t{i}": torch.ones(MIB) for i in range(6)})
    dead = 0
    for _, tensor in store.stream():
        reference = weakref.ref(tensor)
        del tensor
        dead += reference() is None
    assert dead == 6


def test_leaving_the_iteration_early_ends_its_reads(store):
    store.save(1, {f"t{i}": torch.ones(MIB) for i in range(32)})
    before = threading.active_count()

    for fqn, _ in store.stream(read_ahead_bytes=16 * MIB):
        break

    assert threading.active_count() == before
    iterator = store.stream(read_ahead_bytes=16 * MIB)
    next(iterator)
    del iterator
    assert threading.active_count() == before
    store.delete(1)


def test_damage_is_reported_at_the_damaged_tensor(store, path):
    with store.writer(1) as writer:
        for i in range(8):
            writer.add(f"t{i}", random_tensor(torch.float32, 64 << 10, seed=i))
    [segment] = [path / name for name in stored_files(path) if name.startswith("segments")]
    flip_byte(segment, (5 * (256 << 10)) + 3000)

    yielded = []
    with pytest.raises(Corrupt) as raised:
        for fqn, tensor in store.stream():
            yielded.append(fqn)
            assert_same(tensor, random_tensor(torch.float32, 64 << 10, seed=int(fqn[1:])))

    damaged = raised.value.key
    assert damaged in ("t4", "t5") and yielded == [f"t{i}" for i in range(int(damaged[1:]))]
    assert raised.value.file and raised.value.step == 1


def test_wrong_arguments_are_refused_at_the_call(store):
    with pytest.raises(NotFound):
        store.stream()
    store.save(1, {"a": torch.ones(1)})
    with pytest.raises(NotFound):
        store.stream(2)
    with pytest.raises(NotFound):
        store.stream(patterns="b")
    with pytest.raises(Invalid):
        store.stream(read_ahead_bytes=-1)


def test_closing_the_store_ends_the_iteration(path):
    store = cairn.open(path, mode="a")
    store.save(1, {f"t{i}": torch.ones(MIB) for i in range(8)})
    iterator = store.stream(read_ahead_bytes=0)
    next(iterator)
    store.close()

    with pytest.raises(Invalid, match="closed"):
        list(iterator)


@in_new_process
def test_writing_and_streaming_take_bounded_memory(rank, path):
    with cairn.open(path, mode="a") as store:
        tensor = torch.empty(8 * MIB)  # 32 MiB

        def write(step: int, count: int) -> None:
            with store.writer(step) as writer:
                for i in range(count):
                    tensor.fill_(i)
                    writer.add(f"t{i}", tensor)

        def stream(step: int) -> None:
            total = 0
            for _, streamed in store.stream(step, read_ahead_bytes=64 * MIB):
                total += streamed.nbytes
                del streamed
            assert total == (64 if step == 1 else 384) * MIB

        write(1, 2)
        # The second one compares with the first.
        written = [more_memory(lambda: write(step, 12)) for step in (2, 3)]
        stream(1)
        assert max(written) < 100 * MIB, written
        streamed = more_memory(lambda: stream(3))
        assert streamed < (64 + 32 + 100) * MIB, streamed
