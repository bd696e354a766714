"""Several ranks that save and load together: every kind of sharded tensor, on any mesh."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import socket
import textwrap
import threading

import pytest
import torch
import torch.distributed as dist
from interpreters import Program
from ranks import RanksFailed, run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import cairn

SHAPES = {"uneven": (7, 5), "even": (8, 4), "short": (2, 3), "deep": (5, 3, 2)}
ONE_DIM = [(Replicate(),), (Shard(0),), (Shard(1),)]
TWO_DIMS = list(itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2)) + [
    (_StridedShard(0, split_factor=2), Shard(0))
]
THREE_DIMS = [
    (Shard(0), Shard(1), Shard(0)),
    (Shard(1), Replicate(), Shard(1)),
    (Replicate(), Shard(0), Shard(1)),
]


def whole(name: str, offset: int = 0) -> torch.Tensor:
    shape = SHAPES[name]
    count = torch.Size(shape).numel()
    return torch.arange(offset, offset + count, dtype=torch.float32).view(shape)


def sharded(tensor: torch.Tensor, mesh, placements) -> DTensor:
    """As distribute_tensor, also for strided shards, and without talking."""
    local = tensor
    for dim, placement in enumerate(placements):
        if not isinstance(placement, Replicate):
            pieces, _ = placement._split_tensor(local, mesh.size(dim), with_padding=False)
            local = pieces[mesh.get_coordinate()[dim]]
    return DTensor.from_local(
        local.clone(), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def assert_shard(got: DTensor, want: torch.Tensor, mesh, placements) -> None:
    assert isinstance(got, DTensor) and got.shape == want.shape and got.placements == placements
    expected = sharded(want, mesh, placements)._local_tensor
    assert got._local_tensor.shape == expected.shape
    assert torch.equal(got._local_tensor, expected)


def meshes_of(dims: int):
    if dims == 1:
        return init_device_mesh("cpu", (4,)), ONE_DIM
    if dims == 3:
        return init_device_mesh("cpu", (2, 1, 2)), THREE_DIMS
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), TWO_DIMS


def reshard_everything(rank, path, saved_dims, loaded_dims):
    saved_mesh, saved = meshes_of(saved_dims)
    loaded_mesh, loaded = meshes_of(loaded_dims)
    with cairn.open(path, mode="a") as store:
        assert (store.rank, store.world_size) == (rank, 4)
        state = {
            f"{name}/{i}": sharded(whole(name, i), saved_mesh, placements)
            for name in SHAPES
            for i, placements in enumerate(saved)
        }
        store.save(1, state)
        for placements in loaded:
            for read_once in (False, True):
                target = {
                    key: sharded(
                        torch.full_like(whole(key.split("/")[0]), -1), loaded_mesh, placements
                    )
                    for key in state
                }
                store.load(target, read_once=read_once)
                for key, got in target.items():
                    name, i = key.split("/")
                    assert_shard(got, whole(name, int(i)), loaded_mesh, placements)


@pytest.mark.parametrize(
    "saved_dims, loaded_dims", [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)]
)
def test_every_placement_loads_as_every_other(path, saved_dims, loaded_dims):
    run_on_ranks(reshard_everything, path, saved_dims, loaded_dims)

    # And one process, later, sees whole tensors.
    with cairn.open(path) as store:
        assert store.world_size == 1
        for key, got in store.read(step=1).items():
            name, i = key.split("/")
            assert torch.equal(got, whole(name, int(i)))


def save_and_load_parts(rank, path):
    """Each rank has rows of its own of one tensor, as ShardedTensor has them; one rank has none."""
    from torch.distributed._shard.sharded_tensor import Shard as LocalShard
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed._shard.sharded_tensor.metadata import ShardMetadata

    def part(sizes, fill):
        begins = [sum(sizes[:i]) for i in range(4)]
        shards = []
        if sizes[rank]:
            local = whole("deep")[begins[rank] : begins[rank] + sizes[rank]].clone()
            metadata = ShardMetadata([begins[rank], 0, 0], [sizes[rank], 3, 2], f"rank:{rank}/cpu")
            shards.append(LocalShard(local.fill_(fill) if fill else local, metadata))
        return ShardedTensor._init_from_local_shards(shards, 5, 3, 2)

    with cairn.open(path, mode="a") as store:
        store.save(1, {"t": part([2, 0, 2, 1], None)})
        for read_once in (False, True):
            for sizes in ([2, 0, 2, 1], [0, 4, 0, 1]):
                target = {"t": part(sizes, -1.0)}
                store.load(target, read_once=read_once)
                got = [shard.tensor for shard in target["t"].local_shards()]
                begin = sum(sizes[:rank])
                want = whole("deep")[begin : begin + sizes[rank]]
                assert torch.equal(torch.cat(got) if got else torch.empty(0, 3, 2), want)


def test_sharded_tensors(path):
    run_on_ranks(save_and_load_parts, path)
    with cairn.open(path) as store:
        assert torch.equal(store.read()["t"], whole("deep"))


def save_what_only_some_have(rank, path):
    """Stages of a pipeline, a state of each rank, tensor parallelism below two replicas."""
    world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    stage = {f"stage{rank // 2}": whole("even", rank // 2), "all": whole("uneven")}
    own = {f"rng.{rank}": torch.full((3,), rank), f"number.{rank}": rank}
    parallel = sharded(whole("even", 7), world["tp"], (Shard(0),))
    one_stage = sharded(whole("even", 50 + rank // 2), world["tp"], (Shard(1),))
    big = torch.arange(600_000.0).view(2, -1) + rank // 2 if rank else torch.zeros(2, 5)
    with cairn.open(path, mode="a") as store:
        state = {**stage, **own, "parallel": parallel, f"stage{rank // 2}.parallel": one_stage}
        if rank > 1:
            state["big"] = big
        store.save(1, state)
        for read_once in (False, True):
            target = {
                f"stage{rank // 2}": torch.zeros(8, 4),
                f"stage{rank // 2}.parallel": sharded(torch.zeros(8, 4), world["tp"], (Shard(0),)),
                f"rng.{rank}": torch.zeros(3, dtype=torch.int64),
                "all": torch.zeros(7, 5),
            }
            report = store.load(target, strict=False, read_once=read_once)
            # No rank has asked for these.
            assert report.missing == ()
            unexpected = {"parallel", "big", *(f"number.{i}" for i in range(4))}
            assert set(report.unexpected) == unexpected
            assert torch.equal(target[f"stage{rank // 2}"], whole("even", rank // 2))
            assert torch.equal(target["all"], whole("uneven"))
            assert target[f"rng.{rank}"].tolist() == [rank] * 3
            got = target[f"stage{rank // 2}.parallel"]
            assert_shard(got, whole("even", 50 + rank // 2), world["tp"], (Shard(0),))
            mine = {"parallel": sharded(torch.zeros(8, 4), world["tp"], (Shard(1),))}
            store.load(mine, keys="parallel")
            assert_shard(mine["parallel"], whole("even", 7), world["tp"], (Shard(1),))


def test_ranks_may_hold_different_keys(path):
    run_on_ranks(save_what_only_some_have, path)
    with cairn.open(path) as store:
        got = store.read(flat=True)
        assert sorted(got) == sorted(
            ["stage0", "stage1", "all", "parallel", "stage0.parallel", "stage1.parallel", "big"]
            + [f"{name}.{rank}" for name in ("rng", "number") for rank in range(4)]
        )
        assert torch.equal(got["stage1"], whole("even", 1))
        assert torch.equal(got["stage1.parallel"], whole("even", 51))
        assert torch.equal(got["parallel"], whole("even", 7))
        assert torch.equal(got["big"], torch.arange(600_000.0).view(2, -1) + 1)
        assert [got[f"number.{rank}"] for rank in range(4)] == [0, 1, 2, 3]
        assert got["rng.3"].tolist() == [3, 3, 3]


def save_tied(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    tied = sharded(whole("short"), mesh, (Shard(0),))  # two ranks hold nothing of it
    plain = whole("even")
    with cairn.open(path, mode="a") as store:
        store.save(1, {"a": tied, "b": {"c": tied}, "p": plain, "q": plain})
        target = sharded(torch.zeros(2, 3), mesh, (Shard(1),))
        for read_once in (False, True):
            target._local_tensor.zero_()
            store.load(
                {"a": target, "b": {"c": target}, "p": plain, "q": plain}, read_once=read_once
            )
            assert_shard(target, whole("short"), mesh, (Shard(1),))


def test_tied_shards_are_written_once_and_stay_tied(path):
    run_on_ranks(save_tied, path)
    with cairn.open(path) as store:
        keys = store.keys()
        assert keys["b.c"].alias_of == "a" and keys["q"].alias_of == "p"
        got = store.read()
        assert got["a"].data_ptr() == got["b"]["c"].data_ptr()
        assert torch.equal(got["a"], whole("short"))


def save_on_a_part(rank, path):
    """Meshes of three of four ranks; the fourth has a DTensor too, and holds nothing of it."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [0, 2, 3])
    mixed = DeviceMesh("cpu", [3, 0, 2])
    state = {"t": distribute_tensor(whole("uneven"), mesh, (Shard(0),))}
    target = {"t": distribute_tensor(torch.zeros(7, 5), mesh, (Shard(1),))}
    if rank != 1:
        state["m"] = sharded(whole("uneven", 9), mixed, (Shard(0),))
        target["m"] = sharded(torch.zeros(7, 5), mixed, (Shard(1),))
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
        store.load(target, strict=rank != 1)
        if rank != 1:
            assert_shard(target["t"], whole("uneven"), mesh, (Shard(1),))
            assert_shard(target["m"], whole("uneven", 9), mixed, (Shard(1),))


def test_a_mesh_may_hold_some_ranks_only(path):
    run_on_ranks(save_on_a_part, path)
    with cairn.open(path) as store:
        assert torch.equal(store.read()["t"], whole("uneven"))
        assert torch.equal(store.read()["m"], whole("uneven", 9))


def use_a_group(rank, path):
    group = dist.new_group([1, 3])
    if rank in (0, 2):
        with pytest.raises(cairn.Invalid, match="not in the process group"):
            cairn.open(path, mode="a", process_group=group)
        return None
    with cairn.open(path, mode="a", process_group=group) as store:
        from torch.distributed.device_mesh import DeviceMesh

        mesh = DeviceMesh.from_group(group, "cpu")
        store.save(1, {"t": sharded(whole("uneven"), mesh, (Shard(0),))})
        with cairn.open(path, alone=True) as reader:
            assert (reader.rank, reader.world_size) == (0, 1)
            assert torch.equal(reader.read()["t"], whole("uneven"))
            # Alone, a rank can still load its own part.
            target = sharded(torch.zeros(7, 5), mesh, (Shard(1),))
            reader.load({"t": target})
            assert_shard(target, whole("uneven"), mesh, (Shard(1),))
        return store.rank, store.world_size


def test_a_group_of_some_ranks(path):
    assert run_on_ranks(use_a_group, path) == [None, (0, 2), None, (1, 2)]


def save_alone(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    tensor = sharded(whole("uneven"), mesh, (Shard(0),))
    replica = sharded(whole("uneven"), mesh, (Replicate(),))
    with cairn.open(f"{path}-{rank}", mode="a", alone=True) as store:
        with pytest.raises(cairn.Invalid, match="without alone=True") as refused:
            store.save(1, {"t": tensor})
        assert refused.value.key == "t"
        store.save(1, {"t": replica})
        assert torch.equal(store.read()["t"], whole("uneven"))


def test_who_saves_alone_must_have_all(path):
    run_on_ranks(save_alone, path)


class Unkept:
    """What no store keeps."""


def fail_one_by_one(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    good = {"t": sharded(whole("uneven"), mesh, (Shard(0),))}

    def message_of(call):
        with pytest.raises(cairn.Error) as raised:
            call()
        return type(raised.value).__name__, str(raised.value), raised.value.key

    with cairn.open(path, mode="a") as store:
        store.save(1, good)
        bad = {**good, "x": Unkept()} if rank == 2 else good
        for save in (store.save, store.save_async):
            kind, text, key = message_of(functools.partial(save, 2, bad))
            assert (kind, key) == ("Invalid", "x")
            assert ("rank 2: " in text) == (rank != 2)
        partial = DTensor.from_local(torch.ones(2), mesh, (Partial(),), run_check=False)
        _, text, key = message_of(lambda: store.save(2, {"p": partial}))
        assert "redistribute" in text and key == "p"
        kind, text, _ = message_of(lambda: store.save(2 + rank, good))
        assert kind == "Invalid" and "same arguments" in text
        # Ranks that disagree about a tensor.
        odd = {"t": torch.zeros(3 + rank // 3)}
        kind, text, key = message_of(lambda: store.save(2, odd))
        assert (kind, key) == ("Invalid", "t") and "rank 3" in text
        kind, _, _ = message_of(lambda: store.save(1, good))
        assert kind == "Conflict"
        kind, _, _ = message_of(lambda: store.save_async(1, good))
        assert kind == "Conflict"
        # Loads: one rank asks for what is not there, or for another shape, or another step.
        target = {"t": sharded(torch.zeros(7, 5), mesh, (Shard(1),))}
        more = {**target, "y": torch.zeros(1)} if rank == 3 else target
        kind, text, key = message_of(lambda: store.load(more))
        assert (kind, key) == ("NotFound", "y") and ("rank 3: " in text) == (rank != 3)
        kind, text, _ = message_of(lambda: store.load(target, step=1 if rank else None))
        assert kind == "Invalid" and "different steps" in text
        kind, _, _ = message_of(lambda: store.load(target, step=7))
        assert kind == "NotFound"
        assert torch.equal(target["t"]._local_tensor, torch.zeros_like(target["t"]._local_tensor))
        # The store is as good as before.
        store.load(target)
        assert_shard(target["t"], whole("uneven"), mesh, (Shard(1),))
        store.save(2, good)
        assert store.steps() == [1, 2]


def test_what_goes_wrong_on_one_rank_is_raised_on_all(path):
    run_on_ranks(fail_one_by_one, path)


def interrupt_soon() -> None:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def interrupt_a_wait(rank, path, call):
    """Rank 0 is interrupted while it waits for rank 1, which comes once that has happened."""
    store = cairn.open(path, mode="a")
    state = {"t": whole("even")}
    store.save(1, state)
    calls = {
        "save": lambda: store.save(2, state),
        "load": lambda: store.load(state, read_once=True),
        "close": store.close,
    }
    if rank == 0:
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
    dist.barrier()
    if rank == 1:
        # At once, and not after the half hour that the store waits.
        with pytest.raises(cairn.Unavailable):
            calls[call]()
    dist.barrier()
    with contextlib.suppress(cairn.Error):
        store._abandon()


@pytest.mark.parametrize("call", ["save", "load", "close"])
def test_ctrl_c_ends_the_waiting_for_other_ranks(path, call):
    run_on_ranks(interrupt_a_wait, path, call, world_size=2)


class Fussy:
    """Takes no state on one rank."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.weight = torch.zeros(2)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state_dict):
        if self.refuses:
            raise ValueError("does not fit")


def load_into_fussy_objects(rank, path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"m": Fussy(False)})
        expected = ValueError if rank == 1 else cairn.Unavailable
        with pytest.raises(expected, match="does not fit" if rank == 1 else "rank 1: ValueError"):
            store.load({"m": Fussy(rank == 1)})
        # All know of it, so that they go on together.
        store.load({"m": Fussy(False)})
        store.save(2, {"m": Fussy(False)})


def test_an_object_that_refuses_its_state_is_raised_on_all(path):
    run_on_ranks(load_into_fussy_objects, path)
    with cairn.open(path) as store:
        assert store.steps() == [1, 2]


def save_behind(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    state = {"t": sharded(whole("uneven"), mesh, (Shard(0),)), "n": 0}
    with cairn.open(path, mode="a") as store:
        for step in range(1, 6):
            state["n"] = step
            handle = store.save_async(step, state)
            handle.wait_staged()
            state["t"]._local_tensor.add_(1)
        assert handle.result(60).step == 5
        store.save_async(6, state)
        assert store.delete(2).steps == (2,)
        assert store.prune(keep_last=2).steps == (1, 3, 4)
        assert store.steps() == [5, 6]
        # The one that is under way when the store is closed is finished.
        store.save_async(7, state)


def test_asynchronous_saves(path):
    run_on_ranks(save_behind, path)
    with cairn.open(path) as store:
        assert store.steps() == [5, 6, 7]
        assert torch.equal(store.read(step=5)["t"], whole("uneven") + 4)
        assert store.read(step=5)["n"] == 5


def die_before_a_save(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    state = {"t": sharded(whole("uneven"), mesh, (Shard(0),))}
    store = cairn.open(path, mode="a")
    store.save(1, state)
    if rank == 3:
        os._exit(7)
    with pytest.raises(cairn.Unavailable):
        store.save(2, state)
    with pytest.raises(cairn.Error):
        store.close()
    os._exit(0)


def test_a_rank_that_dies_is_noticed_at_once(path):
    # Well before the store's own deadline of half an hour.
    run_on_ranks(die_before_a_save, path, may_die=(0, 1, 2, 3))
    with cairn.open(path) as store:
        assert store.steps() == [1]


def leave_by_an_error(rank, path):
    state = {"t": whole("even")}
    with pytest.raises(RuntimeError if rank == 1 else cairn.Unavailable):
        with cairn.open(path, mode="a") as store:
            store.save(1, state)
            if rank == 1:
                raise RuntimeError("of the training")
            store.save(2, state)


def test_a_rank_that_leaves_by_an_error_does_not_wait_for_the_others(path):
    run_on_ranks(leave_by_an_error, path)


def fork_with_a_store(rank, path):
    """As a data loader does it: the child lets go of the store, and of the connections."""
    state = {"t": whole("even")}
    store = cairn.open(path, mode="a")
    store.save(1, state)
    child = os.fork()
    if child == 0:
        told = 1
        try:
            store.save(2, state)
        except cairn.Invalid as error:
            told = 0 if "fork" in str(error) else 2
        store = None
        gc.collect()
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.save(2, state)
    store.load(state, read_once=True)
    store.close()


def test_a_forked_child_leaves_the_connections_alone(path):
    run_on_ranks(fork_with_a_store, path)


SCRIPT = """
import sys, torch, torch.distributed as dist, cairn

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
store = cairn.open(f"{folder}/store", mode="a")
store.save(1, {"t": torch.ones(3)})
if sys.argv[3] == "well":
    store.save_async(2, {"t": torch.ones(3)})
    sys.exit(0)  # nobody has closed the store
if rank == 1:
    raise RuntimeError("of the training")
store.save(2, {"t": torch.ones(3)})
"""


@pytest.mark.parametrize("end", ["well", "badly"])
def test_stores_that_nobody_closed(tmp_path, end):
    processes = [
        Program(["-c", textwrap.dedent(SCRIPT), str(rank), str(tmp_path), end]) for rank in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    statuses = [process.returncode for process in processes]
    with cairn.open(tmp_path / "store") as store:
        assert store.steps() == ([1, 2] if end == "well" else [1])
    if end == "well":
        assert statuses == [0, 0], errors
    else:
        # Rank 0 learns at once that rank 1 has gone.
        assert statuses == [1, 1] and "of the training" in errors[1]
        assert "cairn.errors.Unavailable" in errors[0]


def open_on_different_hosts(rank, path):
    import cairn._ranks.ranks

    cairn._ranks.ranks._this_host = lambda: (f"host {rank}", "")
    with cairn.open(path, mode="a") as store:
        store.save(1, {"t": whole("even")})
    return cairn._ranks.ranks._reachable_host()


def test_ranks_of_several_hosts_meet_by_name(path):
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("this host's name stands for no address")
    names = set(run_on_ranks(open_on_different_hosts, path))
    assert len(names) == 1 and names != {"127.0.0.1"}


def open_with_trouble(rank, path):
    with pytest.raises(cairn.NotFound):
        cairn.open(path / "none")
    where = path if rank else path.parent / "elsewhere"
    with pytest.raises(cairn.Invalid, match="same directory"):
        cairn.open(where, mode="a")
    own = path if rank == 0 else path.parent / str(rank)
    with cairn.open(own, mode="a", alone=True):
        dist.barrier()
        with pytest.raises(cairn.Conflict):
            cairn.open(path, mode="a")
        dist.barrier()


def test_openings_fail_together(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"a": 1})
    run_on_ranks(open_with_trouble, path)


def test_the_helper_tells_of_ranks_that_fail():
    with pytest.raises(RanksFailed, match="rank 1 raised(.|\n)*of rank 1"):
        run_on_ranks(raise_on_one, world_size=2)


def raise_on_one(rank):
    if rank == 1:
        raise ValueError("of rank 1")


def save_what_a_collective_still_fills(rank, path):
    from torch.distributed import _functional_collectives as collectives

    def waiting():
        return collectives.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)

    plain = waiting()
    assert isinstance(plain, collectives.AsyncCollectiveTensor)
    mesh = init_device_mesh("cpu", (2,))
    inside = DTensor.from_local(waiting(), mesh, (Replicate(),), run_check=False)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"plain": plain, "inside": inside})
        targets = {"plain": torch.zeros(4), "inside": waiting()}
        store.load(targets)
        for got in targets.values():
            assert got.tolist() == [0, 0, 1, 1]


def test_results_of_functional_collectives(path):
    run_on_ranks(save_what_a_collective_still_fills, path, world_size=2)
    with cairn.open(path) as store:
        assert store.read()["plain"].tolist() == [0, 0, 1, 1]
