"""The state-dict tools compared with torch's on the same inputs; collectives on four gloo ranks."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed._state_dict_utils as theirs
from cairn_testing import assert_same, interrupt_when_waiting
from dtensors import sharded
from ranks import with_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import cairn
import cairn.state_dict as ours

CPU = torch.device("cpu")


PLACEMENTS = [
    (Shard(0), Shard(1)),
    (Replicate(), Shard(0)),
    (Shard(1), Replicate()),
    (Shard(0), Shard(0)),
    (Replicate(), Replicate()),
]


def whole_state() -> dict[str, torch.Tensor]:
    return {f"w{i}": torch.arange(35.0).view(7, 5) + i for i in range(len(PLACEMENTS))}


def sharded_state(mesh) -> dict:
    state = {
        name: distribute_tensor(tensor, mesh, placements)
        for (name, tensor), placements in zip(whole_state().items(), PLACEMENTS)
    }
    return {
        **state,
        "nested": {
            "list": [state["w0"], 3],
            "tuple": (distribute_tensor(torch.ones(2, 3, dtype=torch.int64), mesh, PLACEMENTS[0]),),
        },
        "row": distribute_tensor(torch.arange(9.0), mesh["tp"], (Shard(0),)),
        "plain": torch.full((2,), 4.0),
        "value": "text",
        "none": None,
    }


def grid():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


@with_ranks()
def test_gather(rank):
    state = sharded_state(grid())
    for options in [
        {},
        {"cpu_offload": True},
        {"ranks_only": (2,)},
        {"ranks_only": (0, 3), "cpu_offload": True},
        {"pg": dist.group.WORLD},
    ]:
        want = theirs._gather_state_dict(state, **options)
        got = ours.gather_state_dict(state, **options)
        assert_same(got, want)
        if got:
            assert got["plain"] is state["plain"]
    assert_same(ours.gather_state_dict({"a": 1}), {"a": 1})
    # Keys that only one rank has, on a separate mesh.
    mine = {f"only{rank}": state["plain"], "value": rank}
    assert_same(ours.gather_state_dict(mine), mine)
    partial = DTensor.from_local(
        torch.ones(2), init_device_mesh("cpu", (4,)), (Partial(),), run_check=False
    )
    for bad, error in [({"x": object()}, "type_check"), ({"p": partial}, "redistribute")]:
        with pytest.raises(cairn.Invalid, match=error):
            ours.gather_state_dict({**state, **bad} if rank == 1 else state)
    pair = namedtuple("Pair", "left right")
    kept = ours.gather_state_dict({"x": {1}, "p": pair(1, 2)}, type_check=False)
    assert kept == {"x": {1}, "p": (1, 2)} and type(kept["p"]) is tuple
    assert_same(ours.gather_state_dict(state), theirs._gather_state_dict(state))


@with_ranks()
def test_sharded_tensors(rank):
    from torch.distributed._shard.sharded_tensor import Shard as LocalShard
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed._shard.sharded_tensor.metadata import ShardMetadata

    whole = torch.arange(30.0).view(10, 3)
    begin, size = rank * 3, min(3, 10 - rank * 3)
    metadata = ShardMetadata([begin, 0], [size, 3], f"rank:{rank}/cpu")
    shards = [LocalShard(whole[begin : begin + size].clone(), metadata)]
    state = {"t": ShardedTensor._init_from_local_shards(shards, 10, 3)}
    assert_same(ours.gather_state_dict(state), theirs._gather_state_dict(state))
    # torch's version would replace it by the full tensor.
    full = {"t": whole + 1} if rank == 0 else {}
    ours.broadcast_state_dict(full, state, CPU)
    assert torch.equal(state["t"].local_shards()[0].tensor, whole[begin : begin + size] + 1)
    ours.distribute_state_dict({"t": whole + 2}, state, CPU)
    assert torch.equal(state["t"].local_shards()[0].tensor, whole[begin : begin + size] + 2)


def full_state() -> dict:
    return {
        **{name: tensor + 100 for name, tensor in whole_state().items()},
        "plain": torch.arange(2.0),
        "scalar": torch.tensor(5.0),
        "value": [1, {"a": 2}],
        "extra": torch.ones(3),
        "extra value": 9,
        7: torch.arange(3),
        "half": torch.arange(35.0).view(7, 5),
    }


def local_state(mesh, meta: bool) -> dict:
    state = {}
    for i, (name, tensor) in enumerate(whole_state().items()):
        if meta and i % 2 == 0:
            tensor = tensor.to("meta")
        state[name] = distribute_tensor(tensor, mesh, PLACEMENTS[i])
    return {
        **state,
        "plain": torch.zeros(2),
        "scalar": torch.tensor(0.0),
        "value": None,
        7: torch.zeros(3, dtype=torch.int64),
        "half": distribute_tensor(torch.zeros(7, 5, dtype=torch.half), mesh, PLACEMENTS[0]),
        "only here": torch.ones(1),
        "absent": None,
    }


@with_ranks()
def test_broadcast(rank):
    mesh = grid()
    for meta in (False, True):
        for options in [{}, {"strict": True}, {"pg": dist.group.WORLD, "strict": True}]:
            full = full_state() if rank == 0 else {}
            got, want = local_state(mesh, meta), local_state(mesh, meta)
            in_place = got["w1"]
            ours.broadcast_state_dict(full, got, CPU, **options)
            theirs._broadcast_state_dict(full, want, CPU, **options)
            assert_same(got, want)
            assert got["w1"] is in_place
            assert got["plain"].data_ptr() != full.get("plain", torch.empty(0)).data_ptr()
    # With names that the local state lacks theirs fails.
    full = full_state() if rank == 0 else {}
    got = local_state(mesh, False)
    ours.broadcast_state_dict(full, got, CPU, cpu_offload=True)
    want = local_state(mesh, False)
    small = {key: value for key, value in full.items() if key != "extra"}
    theirs._broadcast_state_dict(small, want, CPU, cpu_offload=True)
    assert_same(got, want)
    # The local state of one rank does not fit: no rank's state changes.
    bad = {"w0": distribute_tensor(torch.zeros(6, 5), mesh, PLACEMENTS[0])}
    good = {"w0": distribute_tensor(torch.zeros(7, 5), mesh, PLACEMENTS[0])}
    with pytest.raises(cairn.Invalid, match="w0|0"):
        ours.broadcast_state_dict(full, bad if rank == 3 else good, CPU)
    assert good["w0"]._local_tensor.count_nonzero() == 0
    with pytest.raises(cairn.Invalid, match="rank 0|gather it first"):
        ours.broadcast_state_dict({"w0": good["w0"]} if rank == 0 else {}, good, CPU)
    # Only some ranks have a name.
    some = {"plain": torch.zeros(2)} if rank % 2 else {}
    ours.broadcast_state_dict(full, some, CPU)
    assert [tensor.tolist() for tensor in some.values()] == [[0, 1]] * (rank % 2)


@with_ranks()
def test_distribute(rank):
    mesh = grid()
    for meta in (False, True):
        full, got, want = full_state(), local_state(mesh, meta), local_state(mesh, meta)
        before = got["w1"]
        ours.distribute_state_dict(full, got, CPU)
        theirs._distribute_state_dict(full, want, CPU)
        assert_same(got, want)
        assert got["w1"] is not before and torch.equal(before.full_tensor(), whole_state()["w1"])
    # Each rank cuts its own, and may do so alone.
    if rank == 2:
        got = {"w0": sharded(torch.zeros(7, 5), mesh, PLACEMENTS[0])}
        ours.distribute_state_dict({"w0": torch.full((7, 5), 2.0)}, got, CPU)
        assert (got["w0"]._local_tensor == 2).all() and got["w0"]._local_tensor.shape == (3, 3)
    with pytest.raises(cairn.Invalid):
        ours.distribute_state_dict({"w0": torch.zeros(6, 5)}, {"w0": got["w0"]}, CPU)


@with_ranks()
def test_a_group_of_some_ranks(rank):
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = torch.arange(7.0)
    state = {"t": sharded(whole, mesh, (Shard(0),))}
    local = state["t"]._local_tensor
    got = ours.gather_state_dict(state, pg=group, ranks_only=(1,))  # of the group: global rank 3
    assert_same(got, {"t": whole} if rank == 3 else {})
    ours.broadcast_state_dict({"t": whole + 1} if rank == 1 else {}, state, CPU, group)
    assert torch.equal(state["t"]._local_tensor, local)  # it was filled in place
    assert torch.equal(state["t"].full_tensor(), whole + 1)


def test_one_process_without_a_group():
    state = {"w": torch.arange(6.0).view(2, 3).T, "scalar": torch.tensor(3.5), "bytes": b"ab"}
    assert ours.gather_state_dict(state)["w"] is state["w"]
    local = {"w": torch.zeros(3, 2), "scalar": None, "x": 1}
    ours.broadcast_state_dict(state, local, CPU, strict=True)
    assert list(local) == ["w", "scalar"] and torch.equal(local["w"], state["w"])
    assert local["scalar"] == 3.5
    ours.distribute_state_dict(state, local, CPU)
    assert local["w"].data_ptr() == state["w"].data_ptr() and local["bytes"] == b"ab"


@with_ranks(2)
def test_an_interrupted_call_is_followed_by_a_good_one(rank):
    """Rank 0 is interrupted while it waits for rank 1; both continue with the next call."""
    mesh = init_device_mesh("cpu", (2,))
    state = {"w": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
    ours.gather_state_dict(state)
    if rank == 0:
        with pytest.raises(KeyboardInterrupt):
            interrupt_when_waiting()
            ours.gather_state_dict(state)
    dist.barrier()
    if rank == 1:
        with pytest.raises(cairn.Unavailable):
            ours.gather_state_dict(state)
    for _ in range(2):
        assert ours.gather_state_dict(state)["w"].tolist() == list(range(8))
