"""`Store.writer` and `Store.stream`: states that are never in memory as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, random_tensor, run_python
from ranks import run_on_ranks

import cairn
from cairn import Conflict, Corrupt, Invalid, NotFound, Unavailable

MIB = 1 << 20


def files(path: Path) -> set[str]:
    """The objects of payload, tables and pending parts of a store."""
    return {
        str(each.relative_to(path))
        for folder in ("segments", "tables", "pending")
        for each in (path / folder).rglob("*")
        if each.is_file()
    }


def flip_byte(file: Path, offset: int) -> None:
    with open(file, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


# Writing.


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


def test_a_list_in_the_state_is_filled_from_numbered_names(store):
    tensor = random_tensor(torch.float32, 4)
    with store.writer(1) as writer:
        writer.add("layers.0.weight", tensor)
        writer.add("layers.1.weight", tensor + 1)

    state = {"layers": [{"weight": torch.zeros(4)}, {"weight": torch.zeros(4)}]}
    store.load(state)

    assert_same(state, {"layers": [{"weight": tensor}, {"weight": tensor + 1}]})


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
    with store.writer(3, incremental=False) as writer:
        writer.add_all(state.items())
    assert writer.report.written_bytes == 16 * MIB
    # A save after a writer compares with its step.
    assert store.save(4, state).written_bytes == 0


def test_options_of_a_save_apply(store):
    tensor = torch.zeros(MIB)
    with store.writer(1, chunk_bytes=MIB, compress=True, statistics=True) as writer:
        writer.add("t", tensor)

    assert writer.report.chunks == 4
    assert writer.report.written_bytes < MIB
    assert store.statistics()["t"].zeros == MIB
    changed = tensor.clone()
    changed[:: 1 << 12] = 1
    store.save(2, {"t": random_tensor(torch.float32, MIB)})
    base = store.read("t")["t"]
    base[:: 1 << 12] = 1
    with store.writer(3, deltas=True) as writer:
        writer.add("t", base)
    assert writer.report.written_bytes < MIB
    assert_same(store.read("t")["t"], base)


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
    before = files(path)

    with pytest.raises(error), store.writer(2) as writer:
        writer.add("t", random_tensor(torch.float32, 5 * MIB))
        raise error

    assert store.steps() == [1]
    assert files(path) == before
    with pytest.raises(Invalid, match="ended"):
        writer.add("u", torch.ones(1))
    store.save(2, {"t": torch.ones(100)})


def test_an_empty_block_is_an_empty_step(store):
    with store.writer(1):
        pass

    assert store.read() == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("a", "a.b"), ("a.b", "a"), ("a.b.c", "a"), ("a.b", "a.b.c.d")],
)
def test_names_that_contradict_each_other_are_refused(store, first, second):
    with store.writer(1) as writer:
        writer.add(first, torch.ones(2))
        with pytest.raises(Invalid):
            writer.add(second, torch.zeros(2))
        writer.add("ab", 1)

    assert_same(store.read(flat=True), {first: torch.ones(2), "ab": 1})


def test_what_cannot_be_saved_is_refused_and_the_rest_is_committed(store):
    with store.writer(1) as writer:
        writer.add("a", 1)
        for name, value in (("b", object()), ("c", torch.ones(2).to_sparse()), ("", 1), (3, 1)):
            with pytest.raises(Invalid):
                writer.add(name, value)
        writer.add("b", 2)

    assert store.read() == {"a": 1, "b": 2}


def test_uses_outside_of_the_block_are_refused(store):
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


def test_other_changes_of_the_store_wait_for_the_end_of_the_block(store):
    with store.writer(1) as writer:
        writer.add("a", 1)
        with pytest.raises(Invalid, match="writer"), store.writer(2):
            pass
        with pytest.raises(Invalid):
            store.save(2, {"a": 2})
        writer.add("b", 2)

    assert store.steps() == [1] and store.read() == {"a": 1, "b": 2}
    store.save(2, {"a": 2})


def test_a_writer_waits_for_the_asynchronous_save_before_it(store):
    handle = store.save_async(1, {"t": random_tensor(torch.float32, 4 * MIB)})

    with store.writer(2) as writer:
        writer.add("a", 1)

    assert handle.result().step == 1 and store.steps() == [1, 2]


def test_closing_the_store_in_the_block_aborts_the_step(path):
    store = cairn.open(path, mode="a")
    store.save(1, {"a": 1})
    before = files(path)
    with pytest.raises(Invalid, match="ended"), store.writer(2) as writer:
        writer.add("t", random_tensor(torch.float32, MIB))
        store.close()

    with cairn.open(path, mode="a") as store:
        assert store.steps() == [1] and files(path) == before


def test_a_store_for_reading_has_no_writer(path):
    cairn.open(path, mode="a").close()
    with cairn.open(path) as store, pytest.raises(Invalid), store.writer(1):
        pass


def test_a_forgotten_writer_does_not_prevent_the_close(path):
    store = cairn.open(path, mode="a")
    writer = store.writer(1).__enter__()
    writer.add("t", torch.ones(9))
    store.close()
    cairn.open(path, mode="a").close()


def test_threads_may_take_turns_but_not_add_at_the_same_time(store):
    tensors = [random_tensor(torch.float32, 4 * MIB, seed=i) for i in range(8)]
    conflicts: list[str] = []
    with store.writer(1) as writer:

        def add(number: int) -> None:
            while True:
                try:
                    return writer.add(f"t{number}", tensors[number])
                except Conflict as error:
                    conflicts.append(str(error))
                    time.sleep(0.001)

        threads = [threading.Thread(target=add, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert conflicts and "one at a time" in conflicts[0]
    assert_same(dict(sorted(store.read().items())), {f"t{i}": tensors[i] for i in range(8)})


def test_a_writer_of_another_process_after_a_fork_is_refused(path):
    done = run_python(
        """
        import os, sys, cairn, torch
        with cairn.open(sys.argv[1], mode="a") as store:
            with store.writer(1) as writer:
                writer.add("a", torch.ones(4))
                child = os.fork()
                if child == 0:
                    try:
                        writer.add("b", 1)
                    except cairn.Invalid:
                        os._exit(7)
                    os._exit(1)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(store.read(flat=True).keys())
        """,
        path,
    )
    assert done.stdout.splitlines() == ["7", "dict_keys(['a'])"]


def test_no_space_ends_the_writer(store, path, monkeypatch):
    limit = 8 * MIB
    done = run_python(
        """
        import resource, signal, sys, cairn, torch
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = cairn.open(sys.argv[1], mode="a")
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
        try:
            with store.writer(1) as writer:
                try:
                    for i in range(64):
                        writer.add(f"t{i}", torch.rand(1 << 20))
                except cairn.Unavailable:
                    print("unavailable")
                try:
                    writer.add("small", 1)
                except cairn.Invalid:
                    print("cannot be committed")
        except cairn.Invalid as error:
            print("not committed")
        print(store.steps())
        """,
        path.with_name("limited"),
        limit,
    )
    expected = ["unavailable", "cannot be committed", "not committed", "[]"]
    assert done.stdout.splitlines() == expected


_KILLED = """
import os, signal, sys, cairn, numpy
store = cairn.open(sys.argv[1], mode="a")
with store.writer(2) as writer:
    for i in range(6):
        writer.add(f"t{i}", numpy.random.rand(1 << 20))
        print(i, flush=True)
        if i == 4:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_has_written_is_removed_by_the_next_open(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"t": torch.ones(100)})
    before = files(path)

    child = subprocess.run([sys.executable, "-c", _KILLED, str(path)], capture_output=True,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    assert child.returncode == -signal.SIGKILL, child.stderr
    assert files(path) - before, "the child was killed before it wrote"
    with cairn.open(path) as store:
        assert store.steps() == [1]
    with cairn.open(path, mode="a") as store:
        assert files(path) == before
        with store.writer(2) as writer:
            writer.add("t", torch.ones(5))
        assert store.steps() == [1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_that_is_killed_at_any_moment_has_committed_all_or_nothing(path, seed):
    program = """
import sys, cairn, numpy
store = cairn.open(sys.argv[1], mode="a")
print("begin", flush=True)
for step in range(1, 1000):
    with store.writer(step) as writer:
        for i in range(3):
            writer.add(f"t{i}", numpy.full(1 << 18, step))
    print(step, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE,
                             text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    child.stdout.readline()
    time.sleep(0.05 + 0.07 * seed)
    child.kill()
    printed = child.stdout.read().split()
    child.wait()

    with cairn.open(path, mode="a") as store:
        steps = store.steps()
        assert len(steps) - len(printed) in (0, 1)
        for step in steps[-3:]:
            state = store.read(step=step)
            assert_same(state, {f"t{i}": np.full(1 << 18, step) for i in range(3)})


def test_writing_and_streaming_take_bounded_memory(path):
    done = run_python(
        """
        import sys, threading, time, cairn, torch
        MIB = 1 << 20
        peak = 0
        def resident_bytes():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def watch():
            global peak
            while True:
                peak = max(peak, resident_bytes())
                time.sleep(0.002)
        threading.Thread(target=watch, daemon=True).start()
        with cairn.open(sys.argv[1], mode="a") as store:
            tensor = torch.empty(8 * MIB)  # 32 MiB
            def write(step, count):
                with store.writer(step) as writer:
                    for i in range(count):
                        tensor.fill_(i)
                        writer.add(f"t{i}", tensor)
            write(1, 2)
            for step in (2, 3):  # the second one compares with the first
                start = peak = resident_bytes()
                write(step, 32)
                print((peak - start) // MIB)
            for tensor in store.stream(1): pass
            del tensor
            start = peak = resident_bytes()
            total = 0
            for fqn, tensor in store.stream(3, read_ahead_bytes=64 * MIB):
                total += tensor.nbytes
                del tensor
            print((peak - start) // MIB)
            print(total // MIB)
        """,
        path,
    )
    first, second, streamed, total = map(int, done.stdout.split())
    assert total == 1024
    assert first < 100 and second < 100, (first, second)
    assert streamed < 64 + 32 + 100, streamed


# Several ranks.


def _names_of_files(path: str) -> set[str]:
    return files(Path(path))


def save_shards(rank: int, path: str) -> list[str]:
    from dtensors import sharded, whole
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2))
    with cairn.open(path, mode="a") as store:
        with store.writer(1, note="four ranks") as writer:
            for name, placements in (
                ("even", (Shard(0), Shard(1))), ("uneven", (Shard(0), Replicate())),
                ("deep", (Replicate(), Replicate())),
            ):
                writer.add(f"model.{name}", sharded(whole(name), mesh, placements))
            writer.add(f"rng.{rank}", torch.full((3,), rank))
            writer.add("epoch", 3 + rank)
        own = writer.report.written_bytes
        with store.writer(2) as writer:
            writer.add("model.even", sharded(whole("even"), mesh, (Shard(1), Shard(0))))
        store.save(3, {"model": {"even": sharded(whole("even"), mesh, (Shard(0), Shard(0)))}})
        read = store.read(step=1, flat=True)
        assert_same(read["model.uneven"], whole("uneven"))
        return sorted(read), own, writer.report.chunks_reused


def test_ranks_write_their_shards_together(path):
    results = run_on_ranks(save_shards, str(path))

    names = ["epoch", *(f"model.{n}" for n in ("deep", "even", "uneven")),
             *(f"rng.{rank}" for rank in range(4))]
    assert [names_of_rank for names_of_rank, _, _ in results] == [names] * 4
    assert all(own > 0 for _, own, _ in results)
    with cairn.open(path) as store:
        from dtensors import whole

        state = store.read(step=1)
        assert state["epoch"] == 3 and store.step_info(1).ranks == 4
        assert_same(state["model"]["even"], whole("even"))
        assert_same(state["rng"], {str(rank): torch.full((3,), rank) for rank in range(4)})
        assert_same(store.read(step=2)["model"]["even"], whole("even"))
    assert not [name for name in files(path) if name.startswith("pending")]


def fail_on_rank_one(rank: int, path: str, how: str) -> str:
    with cairn.open(path, mode="a", timeout=20) as store:
        store.save(1, {"t": torch.ones(100)})
        before = files(Path(path))
        try:
            with store.writer(2) as writer:
                writer.add(f"t{rank}", torch.rand(MIB))
                if how == "raise" and rank == 1:
                    raise ValueError("no")
                if how == "same tensor":
                    writer.add("both", torch.ones(5))
                if how == "contradiction":
                    writer.add("a" if rank else "a.b", torch.ones(5) * rank)
        except (ValueError, Invalid, Unavailable) as error:
            outcome = f"{type(error).__name__}: {error}"
        else:
            outcome = "committed"
        assert store.steps() == [1]
        with store.writer(2) as writer:  # the ranks continue
            writer.add(f"t{rank}", torch.ones(4))
        assert store.steps() == [1, 2]
        store.delete(2)
        return outcome


@pytest.mark.parametrize(
    ("how", "of_rank_0", "of_rank_1"),
    [
        ("raise", "Unavailable: rank 1: ValueError: no", "ValueError: no"),
        ("same tensor", "Invalid: ", "Invalid: rank 0: "),
        ("contradiction", "Invalid: 'a.b' is below 'a'", "Invalid: rank 0: 'a.b' is below 'a'"),
    ],
)
def test_a_failure_of_one_rank_fails_all(path, how, of_rank_0, of_rank_1):
    outcomes = run_on_ranks(fail_on_rank_one, str(path), how, world_size=2)

    assert outcomes[0].startswith(of_rank_0) and outcomes[1].startswith(of_rank_1), outcomes
    if how == "same tensor":
        assert "'both'" in outcomes[0] or "both" in outcomes[0]
    with cairn.open(path, mode="a", grace=0) as store:
        assert store.steps() == [1]
    assert not [name for name in files(path) if name.startswith("pending")]


def differ(rank: int, path: str) -> list[str]:
    outcomes = []
    with cairn.open(path, mode="a", timeout=20) as store:
        for arguments in ({"step": rank}, {"step": 5, "overwrite": bool(rank)}):
            try:
                with store.writer(**arguments) as writer:
                    writer.add(f"t{rank}", 1)
            except Invalid as error:
                outcomes.append(str(error))
        store.save(5, {"a": 1})
    return outcomes


def test_ranks_with_different_arguments_are_refused(path):
    for outcomes in run_on_ranks(differ, str(path), world_size=2):
        assert len(outcomes) == 2 and all("same arguments" in each for each in outcomes)


def die(rank: int, path: str) -> str:
    with cairn.open(path, mode="a", timeout=30) as store:
        store.save(1, {"t": torch.ones(4)})
        started = time.monotonic()
        try:
            with store.writer(2) as writer:
                writer.add(f"t{rank}", torch.rand(2 * MIB))
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        except Unavailable as error:
            store._abandon()
            return f"{time.monotonic() - started < 10} {error}"
    return "committed"


def test_a_rank_that_is_killed_fails_the_others(path):
    outcomes = run_on_ranks(die, str(path), world_size=3, may_die=(1,))

    assert outcomes[0].startswith("True") and outcomes[2].startswith("True"), outcomes
    with cairn.open(path, mode="a") as store:
        assert store.steps() == [1]
        assert len([name for name in files(path) if name.startswith("segments")]) == 1


# Reading.


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
    # What a later step has written is in another segment, before or after the first one: the
    # numbers of segments are random.
    state = store.read()
    state["t07"] = torch.zeros(5000)
    state["t30"] = torch.ones(5000)
    store.save(2, state)
    order = [fqn for fqn, _ in store.stream()]
    assert {"t07", "t30"} in (set(order[:2]), set(order[-2:]))
    assert [fqn for fqn in order if fqn not in ("t07", "t30")] == [
        fqn for fqn in shuffled if fqn not in ("t07", "t30")
    ]
    for fqn, tensor in store.stream():
        assert_same(tensor, state[fqn])


def test_each_tensor_is_the_callers(store):
    base = torch.arange(64.0)
    store.save(1, {"a": base, "b": base[:32], "c": base})

    streamed = dict(store.stream())

    assert_same({name: streamed[name] for name in "abc"},
                {"a": base, "b": base[:32].clone(), "c": base})
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
    [segment] = [path / name for name in files(path) if name.startswith("segments")]
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


def test_values_alone_are_an_empty_stream(store):
    store.save(1, {"a": 1})

    assert list(store.stream()) == []


def test_a_copy_from_store_to_store_needs_no_more_than_one_tensor(store, tmp_path):
    state = sample_state()
    store.save(1, state)
    with cairn.open(tmp_path / "copy", mode="a") as copy:
        with copy.writer(1) as writer:
            writer.add_all(store.stream())
            writer.add("step", store.read("step")["step"])
        assert copy.diff(1, 1).changed == ()
        for fqn, value in copy.read(flat=True).items():
            assert_same(value, state[fqn])


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
    blocks = page.read_text().split("```python\n")[1:]
    names: dict = {}
    for block in blocks:
        exec(block.split("```")[0], names)

    assert len(blocks) == 3
    with cairn.open("runs/copy") as copy, cairn.open("runs/big") as big:
        read = big.read("model")
        assert_same(copy.read(), read["model"])
