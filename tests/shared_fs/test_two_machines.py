"""Writers, readers and ranks on two mounts of one directory."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from ranks import run_on_ranks
from states import assert_has_step, state_of
from tool_programs import run_program

import cairn

HERE = pathlib.Path(__file__).resolve().parent
LEASE_SECONDS = 60


class Writer:
    """A writer_program.py on a directory."""

    def __init__(self, directory, *options, launcher=()):
        path = [str(HERE), str(HERE.parent / "python"), *sys.path]
        self.process = subprocess.Popen(
            [*launcher, sys.executable, HERE / "writer_program.py", directory, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        self.opened = self.answer()

    def answer(self):
        return self.process.stdout.readline().strip()

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command):
        self.tell(command)
        return self.answer()

    def kill(self):
        self.process.kill()
        rest = self.process.stdout.read().splitlines()
        self.process.wait()
        return rest


@contextlib.contextmanager
def writer(directory, *options, **keywords):
    started = Writer(directory, *options, **keywords)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()
        started.process.stdin.close()
        started.process.stdout.close()


# A process in its own pid namespace cannot be seen to have died, like one on another machine.
elsewhere = {"launcher": ("unshare", "--pid", "--fork", "--kill-child")}
needs_namespaces = pytest.mark.skipif(
    not shutil.which("unshare") or os.geteuid() != 0, reason="pid namespaces need root and unshare"
)


def verified(store):
    finished = run_program("kv-dump", "verify", store)
    assert finished.status == 0, finished.out + finished.err


def test_the_file_system_has_the_guarantees(nodes):
    finished = run_program("kv-admin", "check-storage", *nodes, "--rounds", 50)
    assert finished.status == 0, finished.out + finished.err


def test_a_step_is_there_for_the_other_machine_when_save_returns(nodes):
    with writer(nodes[0] / "s") as remote:
        assert remote.ask("save 1") == "saved 1"
        with cairn.open(nodes[1] / "s") as store:
            for step in range(1, 20):
                assert remote.ask(f"save {step + 1}") == f"saved {step + 1}"
                assert store.steps() == list(range(1, step + 2))
                assert_has_step(store, step + 1)


def test_verify_is_right_while_the_other_machine_saves(nodes):
    with writer(nodes[0] / "s") as remote:
        assert remote.ask("save-all") == "saved 1"
        saved = []

        def count():
            saved.extend(remote.process.stdout)

        counter = threading.Thread(target=count)
        counter.start()
        for _ in range(10):
            verified(nodes[1] / "s")
        remote.process.kill()
        counter.join()
    assert len(saved) > 5


def test_a_second_writer_is_refused_at_once(nodes):
    with writer(nodes[0] / "s") as first:
        assert first.ask("save 1") == "saved 1"
        begin = time.monotonic()
        with writer(nodes[1] / "s") as second:
            assert second.opened.startswith("error Conflict")
            assert str(first.process.pid) in second.opened
            assert os.uname().nodename in second.opened
        assert time.monotonic() - begin < 20  # most of it is the start of Python
        assert first.ask("save 2") == "saved 2"
        assert first.ask("close") == "closed"
    with writer(nodes[1] / "s") as second:
        assert second.opened == "ready"


@pytest.mark.parametrize("paused", [False, True])
def test_a_writer_that_was_fenced_changes_nothing(nodes, paused):
    with writer(nodes[0] / "s") as first, contextlib.ExitStack() as stack:
        assert first.ask("save 1") == "saved 1"
        if paused:
            first.process.send_signal(signal.SIGSTOP)
        second = stack.enter_context(writer(nodes[1] / "s", "--take-over"))
        assert second.opened == "ready"
        assert second.ask("save 2") == "saved 2"
        first.process.send_signal(signal.SIGCONT)
        assert first.ask("save 3").startswith("error Conflict")
        assert second.ask("save 4") == "saved 4"
    for node in nodes:
        with cairn.open(node / "s") as store:
            assert store.steps() == [1, 2, 4]
            for step in store.steps():
                assert_has_step(store, step)
        verified(node / "s")


def test_the_other_machine_continues_after_a_kill(nodes):
    last = 0
    for round_ in range(6):
        with writer(nodes[round_ % 2] / "s") as one:
            assert one.opened == "ready"
            last += 1
            assert one.ask(f"save {last}") == f"saved {last}"
            one.tell(f"save {last + 1}")
            time.sleep(0.02 * round_)
            rest = one.kill()
        with cairn.open(nodes[(round_ + 1) % 2] / "s") as store:
            steps = store.steps()
            # The interrupted step is there as a whole or not at all; an acknowledged one is there.
            assert steps[:last] == list(range(1, last + 1)) and len(steps) <= last + 1
            assert not rest or len(steps) == last + 1
            for step in steps[-2:]:
                assert_has_step(store, step)
            last = len(steps)
        verified(nodes[(round_ + 1) % 2] / "s")


@needs_namespaces
def test_the_lease_of_a_killed_writer_elsewhere_can_be_taken_over(nodes):
    with writer(nodes[0] / "s", **elsewhere) as first:
        assert first.ask("save 1") == "saved 1"
        first.kill()
    with writer(nodes[1] / "s") as refused:
        assert refused.opened.startswith("error Conflict")
    with writer(nodes[1] / "s", "--take-over") as second:
        assert second.opened == "ready"
        assert second.ask("save 2") == "saved 2"


@needs_namespaces
@pytest.mark.slow
def test_the_lease_of_a_killed_writer_elsewhere_expires(nodes):
    with writer(nodes[0] / "s", **elsewhere) as first:
        assert first.ask("save 1") == "saved 1"
        first.kill()
    killed = time.monotonic()
    opened = "error Conflict"
    while opened.startswith("error Conflict") and time.monotonic() < killed + 2 * LEASE_SECONDS:
        with writer(nodes[1] / "s") as second:
            opened = second.opened
    assert opened == "ready"
    assert LEASE_SECONDS / 2 < time.monotonic() - killed < LEASE_SECONDS + 20


def rank_state(rank, step):
    return {
        "shared": torch.full((100_000,), float(step)),
        "rng": {str(rank): torch.arange(1000) + rank + step},
    }


def save_on_ranks(rank, directories):
    """Each rank uses the mount of its machine."""
    with cairn.open(directories[rank % 2], "a", timeout=60) as store:
        for step in range(1, 6):
            store.save(step, rank_state(rank, step))
        store.save(3, rank_state(rank, 30), overwrite=True)
        store.delete(2)
        state = rank_state(rank, 0)
        store.load(state, 3, strict=False)
        assert torch.equal(state["shared"], rank_state(rank, 30)["shared"])
        assert torch.equal(state["rng"][str(rank)], rank_state(rank, 30)["rng"][str(rank)])
        return store.steps()


def test_ranks_on_both_machines_save_together(nodes):
    directories = [str(node / "s") for node in nodes]
    assert run_on_ranks(save_on_ranks, directories, timeout=120) == [[1, 3, 4, 5]] * 4
    for node in nodes:
        verified(node / "s")
        with cairn.open(node / "s") as store:
            for step, value in ((1, 1), (3, 30), (4, 4), (5, 5)):
                found = store.read(step=step)
                assert torch.equal(found["shared"], torch.full((100_000,), float(value)))
                for rank in range(4):
                    expected = rank_state(rank, value)["rng"][str(rank)]
                    assert torch.equal(found["rng"][str(rank)], expected)


def test_the_other_machine_deletes_and_saves(nodes):
    with writer(nodes[0] / "s") as remote:
        assert remote.ask("save 1") == "saved 1"
        with cairn.open(nodes[1] / "s") as reader:
            assert_has_step(reader, 1)
            with pytest.raises(cairn.NotFound):
                reader.read(step=2)
        assert remote.ask("close") == "closed"
    with cairn.open(nodes[1] / "s", "a") as store:
        store.save(2, state_of(2))
        store.delete(1)
    with cairn.open(nodes[0] / "s") as store:
        assert store.steps() == [2]
        assert_has_step(store, 2)
