"""Writers and readers on two mounts of one directory. test_process_suites.py has second writers,
fences, kills and ranks."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import pytest
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
    while opened.startswith("error Conflict"):
        with writer(nodes[1] / "s") as second:
            opened = second.opened
    assert opened == "ready"
    assert time.monotonic() - killed > LEASE_SECONDS / 2


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
