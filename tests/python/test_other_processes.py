"""A store that is open for reading, in worker processes: pickled, and after a fork."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
from cairn_testing import run_python

import cairn


@pytest.fixture
def address(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        store.save(1, {"w": np.arange(40_000.0), "epoch": 3}, tags=["first"])
        store.save(2, {"w": np.arange(40_000.0) + 1, "epoch": 4})
    return tmp_path / "store"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_receive_a_reader(address, method, monkeypatch):
    monkeypatch.chdir(address.parent)
    with (
        cairn.open("store", fallback=["other"]) as store,
        multiprocessing.get_context(method).Pool(1) as pool,
    ):
        monkeypatch.chdir("/")
        assert pool.apply(cairn.Store.steps, (store,)) == [1, 2]
        state = pool.apply(cairn.Store.read, (store, None, "first"), {"mmap": True})
        assert state["epoch"] == 3 and np.array_equal(state["w"], np.arange(40_000.0))
        assert store.steps() == [1, 2]


def test_a_copy_of_a_reader_is_another_reader(address):
    with cairn.open(address) as store:
        other = copy.deepcopy({"store": store})["store"]
    assert other.steps() == [1, 2] and other.rank == 0
    other.close()


def test_what_another_process_cannot_open_is_not_pickled(address):
    with cairn.open(address, mode="a") as store, pytest.raises(cairn.Invalid, match="for writing"):
        pickle.dumps(store)
    with pytest.raises(cairn.Invalid, match="it is closed"):
        reader = cairn.open(address)
        reader.close()
        pickle.dumps(reader)
    with cairn.open("memory:pickled", mode="a") as memory:
        memory.save(1, {})
        with cairn.open("memory:pickled") as store, pytest.raises(cairn.Invalid, match="memory of"):
            pickle.dumps(store)
    with cairn.open(address, credentials=lambda: {}) as store:
        with pytest.raises(cairn.Invalid, match="function of a module"):
            pickle.dumps(store)


def test_a_reader_opens_itself_again_after_a_fork(address):
    # In a separate process, because a fork copies everything that pytest and torch have running.
    result = run_python(
        """
        import multiprocessing, os, sys, cairn
        from concurrent.futures import ThreadPoolExecutor
        store = cairn.open(sys.argv[1], fallback=[sys.argv[1] + "-none"])
        mapped = store.read(mmap=True)["w"]
        stream = store.stream()
        fqn, _ = next(stream)
        assert store.steps() == [1, 2]
        if os.fork() == 0:
            def read(_):
                return store.steps(), store.read("epoch", step="first")["epoch"]
            with ThreadPoolExecutor(4) as pool:
                states = list(pool.map(read, range(4)))
            print(states == [([1, 2], 3)] * 4, mapped[-1] == 40_000, store.rank, flush=True)
            try:
                next(stream)
            except cairn.Invalid as error:
                print("fork" in str(error), flush=True)
            if os.fork() == 0:
                print(store.read_slice("w", [(0, 1)])[0] == 1.0, flush=True)
                sys.exit(0)
            os.wait()
            store.close()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert store.steps() == [1, 2]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.apply(store.steps))
        store.close()
        """,
        address,
    )
    assert result.stdout.split() == "True True 0 True True [1, 2]".split()
    assert result.stderr == ""
