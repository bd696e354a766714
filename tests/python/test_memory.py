"""Memory of the tensors that read() creates: its owner, its size and its lifetime."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from cairn_testing import assert_same, random_tensor, resident_bytes

MIB = 1 << 20


def small_tensors(count: int, elements: int) -> dict[str, torch.Tensor]:
    return {f"{i:04}": random_tensor(torch.uint8, elements, seed=i) for i in range(count)}


def test_small_tensors_come_back_whole_across_several_arenas(store):
    # 900,001 bytes are not a multiple of the alignment; 80 of them need three arenas. A large
    # tensor
    # is between them in key order.
    state = small_tensors(80, 900_001)
    state["0040x"] = random_tensor(torch.float32, 700, 500)
    store.save(1, state)

    read = store.read()

    assert_same(read, {key: state[key] for key in read})
    assert list(read) == list(state)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read.values())


def test_neighbours_in_memory_have_storages_of_their_own(store):
    state = {"a": random_tensor(torch.bfloat16, 16, 3), "b": random_tensor(torch.bfloat16, 5)}
    store.save(1, state)

    read = store.read()

    assert read["a"].untyped_storage().nbytes() == 96
    assert read["b"].untyped_storage().nbytes() == 10
    saved = io.BytesIO()
    torch.save(read["a"], saved)
    assert len(saved.getvalue()) < 2000
    assert_same(copy.deepcopy(read), state)
    read["a"].fill_(1.0)
    assert_same(read["b"], state["b"])


def test_new_tensors_take_part_in_training_and_sharing(store):
    store.save(1, {"weight": torch.ones(4), "large": torch.ones(MIB)})
    for tensor in store.read().values():
        tensor.requires_grad_()
        (tensor * 3).sum().backward()
        assert torch.equal(tensor.grad, torch.full_like(tensor, 3.0))
        shared = tensor.detach().share_memory_()
        assert shared.is_shared()
        assert torch.equal(shared, torch.ones_like(shared))


def test_a_tensor_outlives_its_neighbours_and_the_store(store):
    state = small_tensors(100, 50_000)
    store.save(1, state)

    kept = store.read()["0050"]
    store.close()

    assert_same(kept, state["0050"])


@pytest.mark.parametrize("count, elements", [(400, 400_000), (4, 40 * MIB)], ids=["small", "large"])
def test_memory_is_given_back_with_the_last_tensor(store, count, elements):
    store.save(1, small_tensors(count, elements))
    store.read()
    before_bytes = resident_bytes()

    read = store.read()
    while_held_bytes = resident_bytes()
    del read

    total_bytes = count * elements
    assert while_held_bytes - before_bytes > total_bytes * 0.9
    assert resident_bytes() - before_bytes < total_bytes * 0.1


@pytest.mark.parametrize("elements", [MIB, 3 * MIB + 1], ids=["1 MiB", "3 MiB"])
def test_large_tensors_begin_at_a_page(store, elements):
    large = random_tensor(torch.uint8, elements)
    store.save(1, {"large": large, "tied": large})

    read = store.read()
    part = store.read_slice("large", [(0, MIB)])

    assert_same(read, {"large": large, "tied": large})
    assert_same(part, large[:MIB])
    assert read["large"].data_ptr() % 4096 == 0
    assert part.data_ptr() % 4096 == 0
