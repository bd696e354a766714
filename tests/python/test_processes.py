"""Processes that fork while a store is open."""

from __future__ import annotations

from cairn_testing import run_python

import cairn


def test_a_forked_child_is_told_to_open_again(path):
    # In a separate process, because a fork copies everything that pytest and torch have running.
    result = run_python(
        """
        import os, sys, cairn
        store = cairn.open(sys.argv[1], mode="a")
        store.save(1, {"v": 1})
        handle = store.save_async(2, {"v": 2})
        if os.fork() == 0:
            calls = [store.steps, store.read, store.close, handle.result, lambda: store.save(3, {})]
            for call in calls:
                try:
                    call()
                except cairn.Invalid as error:
                    print("fork" in str(error), flush=True)
            print(repr(handle) != "", cairn.open(sys.argv[1]).steps()[0] == 1, flush=True)
            del store, handle, calls, call
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        handle.result()
        store.save(3, {"v": 3})
        store.close()
        """,
        path,
    )
    assert result.stdout.split() == ["True"] * 7
    assert result.stderr == ""
    with cairn.open(path) as store:
        assert store.steps() == [1, 2, 3]


FORK = """
import os, sys, torch, cairn

torch.set_num_threads(1)

def state(step):
    generator = torch.Generator().manual_seed(step)
    return {
        "large": torch.randn(1_500_000, generator=generator),
        "same": torch.arange(1_000_000),
        "small": [torch.randn(50, generator=generator) for _ in range(20)],
        "step": step,
    }

def check(store, step):
    got = store.read(step=step)
    want = state(step)
    assert got["step"] == step
    assert torch.equal(got["large"], want["large"]) and torch.equal(got["same"], want["same"])
    assert all(torch.equal(a, b) for a, b in zip(got["small"], want["small"]))

def save_all(path, first):
    with cairn.open(path, mode="a") as store:
        store.save(first, state(first))
        store.save(first + 1, state(first + 1), tuning=cairn.SaveTuning(compress=True))
        store.save_async(first + 2, state(first + 2),
            tuning=cairn.SaveTuning(deltas=2, statistics=True)).result()
        store.delete(first)
        store.compact()
        check(store, first + 1)
        target = state(0)
        store.load(target, step=first + 2)
        assert torch.equal(target["large"], state(first + 2)["large"])

def in_child(work):
    pid = os.fork()
    if pid == 0:
        import signal
        signal.alarm(60)  # a hang is a failure
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

path, other = sys.argv[1:]
with cairn.open(path, mode="a") as store:
    store.save(1, state(1))
    store.save_async(2, state(2)).result()
    check(store, 2)
    in_child(lambda: save_all(other, 1))  # while the parent has its store open
    store.save(3, state(3))
    check(store, 3)
in_child(lambda: save_all(path, 10))  # the same store
in_child(lambda: in_child(lambda: save_all(path, 20)))
with cairn.open(path, mode="a") as store:
    assert store.steps() == [1, 2, 3, 11, 12, 21, 22]
    for step in store.steps():
        check(store, step)
    store.save(30, state(30))
print("ok")
"""


def test_a_forked_child_that_opens_a_store_saves(path, tmp_path):
    """The threads of the parent, and those of its libraries, do not exist in the child."""
    assert run_python(FORK, path, tmp_path / "other").stdout == "ok\n"
