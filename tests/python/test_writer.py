"""`Store.writer`: states that are saved tensor by tensor, by one process and by several ranks."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, random_tensor, stored_files
from dtensors import sharded, whole
from ranks import in_new_process, run_on_ranks, with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import cairn
from cairn import Conflict, Invalid, Unavailable

MIB = 1 << 20


def test_added_leaves_are_read_as_a_nested_state(store):
    weight = random_tensor(torch.bfloat16, 300, 7)
    bias = np.arange(5, dtype=np.int16)

    with store.writer(7, tags=["best"], metrics={"loss": 1.5}, note="streamed") as writer:
        writer.add("model.layers.0.weight", weight)
        writer.add("model.layers.0.bias", bias)
        writer.add("epoch", 3)
        writer.add("config", {"betas": (0.9, 0.999), "names": ["a", "b"]})
        assert store.steps() == []

    expected = {
        "model": {"layers": {"0": {"weight": weight, "bias": bias}}},
        "epoch": 3,
        "config": {"betas": (0.9, 0.999), "names": ["a", "b"]},
    }
    assert_same(store.read(), expected)
    info = store.step_info(7)
    assert (info.tags, info.metrics, info.note) == (("best",), {"loss": 1.5}, "streamed")
    assert (info.tensors, info.values) == (2, 5)
    assert (writer.report.step, writer.report.logical_bytes) == (7, weight.nbytes + bias.nbytes)
    # A list is filled from numbered names.
    state = {"model": {"layers": [{"weight": torch.zeros_like(weight), "bias": bias * 0}]}}
    store.load(state, keys="model")
    assert_same(state["model"]["layers"], [{"weight": weight, "bias": bias}])


def test_every_kind_of_leaf_that_save_accepts(store):
    base = torch.arange(12.0).reshape(3, 4)
    leaves = {
        "strided": base.t(),
        "empty": torch.zeros(0, 3),
        "scalar": np.float64(2.5),
        "reversed": np.arange(6)[::-1],
        "none": None,
        "text": "x",
        "tied": {"a": base, "b": base[1:]},
    }

    with store.writer(1) as writer:
        writer.add_all(leaves.items())
        writer.add("module", torch.nn.Linear(2, 3))

    read = store.read()
    assert_same(read["strided"], base.t().contiguous())
    assert_same(read["reversed"], np.arange(6)[::-1].copy())
    assert_same({name: read[name] for name in ("scalar", "none", "text")},
                {name: leaves[name] for name in ("scalar", "none", "text")})
    assert read["tied"]["b"].untyped_storage().data_ptr() == (
        read["tied"]["a"].untyped_storage().data_ptr()
    )
    assert set(read["module"]) == {"weight", "bias"}


def test_the_caller_may_change_a_tensor_after_it_was_added(store):
    tensor = torch.zeros(3 * MIB)
    with store.writer(1) as writer:
        for number in range(4):
            tensor.fill_(number)
            writer.add(f"t{number}", tensor)

    assert [store.read(f"t{n}")[f"t{n}"][-1].item() for n in range(4)] == [0, 1, 2, 3]


def test_unchanged_chunks_are_references_to_the_base(store):
    state = {f"w{i}": random_tensor(torch.int32, MIB, seed=i) for i in range(4)}
    store.save(1, state)
    state["w2"][5] += 1

    with store.writer(2) as writer:
        writer.add_all(state.items())

    assert (writer.report.chunks, writer.report.chunks_reused) == (4, 3)
    assert writer.report.written_bytes == 64 << 10
    assert store.step_info(2).base_step == 1
    assert_same(store.read(step=2), state)
    with store.writer(3, tuning=cairn.SaveTuning(incremental=False)) as writer:
        writer.add_all(state.items())
    assert writer.report.written_bytes == 16 * MIB
    # A save after a writer compares with its step.
    assert store.save(4, state).written_bytes == 0


def test_options_of_a_save_apply(store):
    tensor = torch.zeros(MIB)
    with store.writer(1,
        tuning=cairn.SaveTuning(chunk_bytes=MIB, compress=True, statistics=True)) as writer:
        writer.add("t", tensor)

    assert writer.report.chunks == 4
    assert writer.report.written_bytes < MIB
    assert store.statistics()["t"].zeros == MIB
    changed = tensor.clone()
    changed[:: 1 << 12] = 1
    store.save(2, {"t": random_tensor(torch.float32, MIB)})
    base = store.read("t")["t"]
    base[:: 1 << 12] = 1
    with store.writer(3, tuning=cairn.SaveTuning(deltas=True)) as writer:
        writer.add("t", base)
    assert writer.report.written_bytes < MIB
    assert_same(store.read("t")["t"], base)
    auto = cairn.SaveTuning(incremental=False, compress="auto")  # without rates, it does not
    assert store.save(4, {"t": tensor}, tuning=auto).written_bytes == tensor.nbytes
    with pytest.raises(TypeError, match="compress"):
        store.save(5, {"t": tensor}, tuning=cairn.SaveTuning(compress="fast"))


def test_a_step_is_replaced_only_with_overwrite(store):
    store.save(1, {"t": torch.zeros(3)})

    with pytest.raises(Conflict), store.writer(1):
        pass
    with store.writer(1, overwrite=True) as writer:
        writer.add("t", torch.ones(3))

    assert_same(store.read(), {"t": torch.ones(3)})
    with pytest.raises(Conflict), store.writer(1) as writer:
        writer.add("t", torch.ones(3))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_block_leaves_the_store_unchanged(store, path, error):
    store.save(1, {"t": torch.ones(100)})
    before = stored_files(path)

    with pytest.raises(error), store.writer(2) as writer:
        writer.add("t", random_tensor(torch.float32, 5 * MIB))
        raise error

    assert store.steps() == [1]
    assert stored_files(path) == before
    with pytest.raises(Invalid, match="ended"):
        writer.add("u", torch.ones(1))
    store.save(2, {"t": torch.ones(100)})


def test_what_cannot_be_saved_is_refused_and_the_rest_is_committed(store):
    with store.writer(1) as writer:
        writer.add("a", 1)
        for name, value in (("b", object()), ("c", torch.ones(2).to_sparse()), ("", 1), (3, 1)):
            with pytest.raises(Invalid):
                writer.add(name, value)
        writer.add("b", 2)

    assert store.read() == {"a": 1, "b": 2}


def test_uses_outside_of_the_block_are_refused_and_an_empty_block_is_an_empty_step(store):
    writer = store.writer(1)
    with pytest.raises(Invalid, match="with store.writer"):
        writer.add("a", 1)
    with writer:
        writer.add("a", 1)
    with pytest.raises(Invalid, match="ended"):
        writer.add("b", 1)
    with pytest.raises(Invalid, match="once"), writer:
        pass
    assert store.read() == {"a": 1}
    with store.writer(2):
        pass
    assert store.read(step=2) == {}


def test_other_changes_of_the_store_wait_for_each_other(store):
    handle = store.save_async(0, {"t": random_tensor(torch.float32, 4 * MIB)})
    with store.writer(1) as writer:
        writer.add("a", 1)
        with pytest.raises(Invalid, match="writer"), store.writer(2):
            pass
        with pytest.raises(Invalid):
            store.save(2, {"a": 2})
        writer.add("b", 2)

    assert handle.result().step == 0 and store.steps() == [0, 1]
    assert store.read() == {"a": 1, "b": 2}
    store.save(2, {"a": 2})


def test_closing_the_store_in_the_block_aborts_the_step(path):
    store = cairn.open(path, mode="a")
    store.save(1, {"a": 1})
    before = stored_files(path)
    with pytest.raises(Invalid, match="ended"), store.writer(2) as writer:
        writer.add("t", random_tensor(torch.float32, MIB))
        store.close()

    with cairn.open(path, mode="a") as store:
        assert store.steps() == [1] and stored_files(path) == before


def test_threads_may_take_turns_but_not_add_at_the_same_time(store):
    class Asking:
        """Another thread adds while this object gives its state."""

        def state_dict(self) -> dict:
            with pytest.raises(Conflict, match="one at a time"):
                other.submit(writer.add, "b", 1).result()
            return {"t": torch.ones(2)}

        def load_state_dict(self, state: dict) -> None:
            raise AssertionError("nothing is loaded")

    with store.writer(1) as writer, ThreadPoolExecutor(1) as other:
        writer.add("a", Asking())
        other.submit(writer.add, "c", 2).result()

    assert_same(store.read(), {"a": {"t": torch.ones(2)}, "c": 2})


@in_new_process
def test_a_writer_of_another_process_after_a_fork_is_refused(rank, path) -> None:
    with cairn.open(path, mode="a") as store:
        with store.writer(1) as writer:
            writer.add("a", torch.ones(4))
            child = os.fork()
            if child == 0:
                try:
                    writer.add("b", 1)
                except Invalid:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert list(store.read(flat=True)) == ["a"]


@with_ranks()
def test_ranks_write_their_shards_together(rank, path):
    mesh = init_device_mesh("cpu", (2, 2))
    with cairn.open(path, mode="a") as store:
        with store.writer(1) as writer:
            for name in ("even", "uneven"):
                writer.add(f"model.{name}", sharded(whole(name), mesh, (Shard(0), Shard(1))))
            writer.add("copies", sharded(whole("deep"), mesh, (Replicate(), Replicate())))
            writer.add(f"rng.{rank}", torch.full((3,), rank))
            writer.add("epoch", 3 + rank)
        assert writer.report.written_bytes > 0

    with cairn.open(path) as store:
        state = store.read()
        assert state["epoch"] == 3 and store.step_info(1).ranks == 4
        assert_same(state["model"], {name: whole(name) for name in ("even", "uneven")})
        assert_same(state["copies"], whole("deep"))
        assert_same(state["rng"], {str(rank): torch.full((3,), rank) for rank in range(4)})
    assert not [name for name in stored_files(path) if name.startswith("pending")]


@pytest.mark.parametrize(
    ("how", "of_rank_0", "of_rank_1"),
    [
        ("raise", "Unavailable: rank 1: ValueError: no", "ValueError: no"),
        ("same tensor", "Invalid: .*both", "Invalid: rank 0: "),
        ("contradiction", r"Invalid: 'a\.b' is below 'a'", r"Invalid: rank 0: 'a\.b' is below"),
    ],
)
@with_ranks(2)
def test_a_failure_of_one_rank_fails_all(rank, path, how, of_rank_0, of_rank_1):
    with cairn.open(path, mode="a", timeout=600) as store:
        store.save(1, {"t": torch.ones(100)})
        with pytest.raises((ValueError, Invalid, Unavailable)) as raised:
            with store.writer(2) as writer:
                writer.add(f"t{rank}", torch.rand(MIB))
                if how == "raise" and rank == 1:
                    raise ValueError("no")
                if how == "same tensor":
                    writer.add("both", torch.ones(5))
                if how == "contradiction":
                    writer.add("a" if rank else "a.b", torch.ones(5) * rank)
        outcome = f"{raised.type.__name__}: {raised.value}"
        assert re.match(of_rank_1 if rank else of_rank_0, outcome), outcome
        assert store.steps() == [1]
        with store.writer(2) as writer:  # the ranks continue
            writer.add(f"t{rank}", torch.ones(4))
        torch.distributed.barrier()  # rank 0 deletes the step
        store.delete(2)
    if rank == 0:
        with cairn.open(path, mode="a", grace=0, alone=True) as store:
            assert store.steps() == [1]
        assert not [name for name in stored_files(path) if name.startswith("pending")]


@with_ranks(2)
def test_ranks_with_different_arguments_are_refused(rank: int, path) -> None:
    with cairn.open(path, mode="a", timeout=600) as store:
        for arguments in ({"step": rank}, {"step": 5, "overwrite": bool(rank)}):
            with pytest.raises(Invalid, match="same arguments"):
                with store.writer(**arguments) as writer:
                    writer.add(f"t{rank}", 1)
        store.save(5, {"a": 1})


def die(rank: int, path: str) -> None:
    # Far longer than the test may take: a rank that waited for that long would be noticed.
    with cairn.open(path, mode="a", timeout=3600) as store:
        store.save(1, {"t": torch.ones(4)})
        with pytest.raises(Unavailable), store.writer(2) as writer:
            writer.add(f"t{rank}", torch.rand(2 * MIB))
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        store.abandon()


def test_a_rank_that_is_killed_fails_the_others(path):
    run_on_ranks(die, str(path), world_size=3, may_die=(1,))

    with cairn.open(path, mode="a") as store:
        assert store.steps() == [1]
        assert len([name for name in stored_files(path) if name.startswith("segments")]) == 1
