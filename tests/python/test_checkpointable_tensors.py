"""torch's CheckpointableTensor, a tensor with the fields of shards, in native saves and loads. The
fields need no version of torch; the protocol and bcomplex32 exist from torch 2.14 on."""

from __future__ import annotations


import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import Saver
from ranks import with_ranks

import cairn
from cairn.state_dict import gather_state_dict

WHOLE = torch.arange(48.0).reshape(6, 8)
has_protocol = pytest.mark.skipif(
    not hasattr(dcp, "CheckpointableTensor"), reason="this torch has no CheckpointableTensor"
)


def columns(begin: int, *widths: int, whole: torch.Tensor = WHOLE) -> torch.Tensor:
    """A tensor with columns of `whole` from `begin` on, one shard per width, and padding."""
    made = torch.full((6, sum(widths) + 2), -1.0).to(whole.dtype)
    inside = [sum(widths[:i]) + (i > 0) for i in range(len(widths))]
    at = [begin + sum(widths[:i]) for i in range(len(widths))]
    for start, offset, width in zip(inside, at, widths):
        made[:, start : start + width] = whole[:, offset : offset + width]
    made.global_shape = tuple(whole.shape)
    made.global_offsets = tuple((0, offset) for offset in at)
    made.local_offsets = tuple((0, start) for start in inside)
    made.local_sizes = tuple((6, width) for width in widths)
    return made


def held(rank: int, whole: torch.Tensor = WHOLE) -> torch.Tensor:
    return columns(0, 2, 3, whole=whole) if rank == 0 else columns(5, 3, whole=whole)


def test_shards_in_one_tensor_alone_are_the_complete_tensor(store):
    store.save(1, {"table": columns(0, 3, 5)})
    assert torch.equal(store.read()["table"], WHOLE)
    target = columns(0, 1, 7, whole=torch.zeros(6, 8))
    store.load({"table": target})
    assert torch.equal(target, columns(0, 1, 7))


def test_wrong_fields_are_refused(store):
    for change in (
        {"global_offsets": ((0, 7),)},
        {"local_sizes": ((6, 9),)},
        {"local_offsets": ((0, -1),)},
        {"local_offsets": ()},
        {"global_shape": (6,)},
    ):
        table = columns(0, 8)
        vars(table).update(change)
        with pytest.raises(cairn.Invalid, match="wrong fields") as raised:
            store.save(1, {"table": table})
        assert raised.value.key == "table"
    meta = torch.empty(6, 10, device="meta")
    vars(meta).update(vars(columns(0, 8)))
    store.save(1, {"table": columns(0, 8)})
    with pytest.raises(cairn.Invalid, match="meta device"):
        store.load({"table": meta})


@with_ranks(2)
def test_each_rank_saves_and_loads_its_shards(rank, path):
    with cairn.open(path, mode="a") as store:
        parameter = torch.nn.Parameter(held(rank))
        vars(parameter).update(vars(held(rank)))
        store.save(1, {"table": held(rank), "p": parameter, "plain": WHOLE})
        store.save_async(2, {"table": held(rank, WHOLE + 1)}).result()
        whole = store.read(step=1)
        assert torch.equal(whole["table"], WHOLE) and torch.equal(whole["p"], WHOLE)
        for read_once in (False, True):
            # ranks have swapped their shards
            target = {"table": held(1 - rank, torch.zeros(6, 8)), "plain": torch.zeros(6, 8)}
            store.load(target, step=1, strict=False, read_once=read_once)
            assert torch.equal(target["table"], held(1 - rank))
            assert torch.equal(target["plain"], WHOLE)
        with Saver(store, every=1) as saver:
            state = {"table": held(rank, torch.zeros(6, 8))}
            assert saver.resume(state) == 2
            assert torch.equal(state["table"], held(rank, WHOLE + 1))
            saver.step(3, state)
    full = gather_state_dict({"table": held(rank)})
    assert torch.equal(full["table"], WHOLE)


@with_ranks(2)
def test_copies_of_the_same_shard_are_saved_once(rank, path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"table": columns(0, 3, 5)})
        assert torch.equal(store.read()["table"], WHOLE)


@with_ranks(2)
def test_later_saves_write_the_new_memory_of_known_shards(rank, path):
    with cairn.open(path, mode="a") as store:
        for step in range(3):
            whole = WHOLE + step
            widths = (3, 5) if rank else (3,)  # rank 0 writes the first shard, which both have
            store.save(step, {"table": columns(0, *widths, whole=whole)})
            assert torch.equal(store.read()["table"], whole)


@has_protocol
@with_ranks(2)
def test_dcp_and_the_native_api_read_each_others_shards(rank, path):
    assert isinstance(held(rank), dcp.CheckpointableTensor)
    dcp.save({"table": held(rank)}, storage_writer=CairnWriter(path, step=1))
    with cairn.open(path, mode="a") as store:
        target = {"table": held(1 - rank, torch.zeros(6, 8))}
        store.load(target, step=1)
        assert torch.equal(target["table"], held(1 - rank))
        store.save(2, {"table": held(rank, WHOLE + 1)})
    dcp.load(target, storage_reader=CairnReader(path, step=2))
    assert torch.equal(target["table"], held(1 - rank, WHOLE + 1))


@pytest.mark.skipif(not hasattr(torch, "bcomplex32"), reason="this torch has no bcomplex32")
def test_bcomplex32(store: cairn.Store):
    bits = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    value = bits.view(torch.bcomplex32)
    store.save(1, {"z": value, "scalar": value[0, 0], "columns": value[:, 1:3]})
    back = store.read()
    assert back["z"].dtype == torch.bcomplex32 and back["columns"].shape == (4, 2)
    assert torch.equal(back["z"].view(torch.int32), bits)
    assert store.keys()["z"].dtype == "bcomplex32"
    target = torch.zeros(4, 6, dtype=torch.int32).view(torch.bcomplex32)
    store.load({"z": target}, keys="z")
    assert torch.equal(target.view(torch.int32), bits)
