"""Progress of long calls: the function, the line, the bar of tqdm, and cancellation."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch
from cairn_testing import run_on_terminal, steps_of
from ranks import with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import cairn
from cairn import _cairn
from cairn._base import progress
from cairn._mirror.worker import MirrorWorker

BYTES = 32 << 20
COMPRESSED = cairn.SaveTuning(compress=True)


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """The path of a store with two steps."""
    path = tmp_path_factory.mktemp("progress") / "store"
    with cairn.open(path, mode="a") as store:
        state = {"weight": torch.randn(BYTES // 4)}
        store.save(1, state, tuning=COMPRESSED)
        state["weight"].mul_(1.5)
        store.save(2, state, tuning=COMPRESSED)
    return path


CALLS = {
    "save": lambda store, given: store.save(
        9, {"weight": torch.randn(BYTES // 4)}, tuning=COMPRESSED, **given
    ),
    "load": lambda store, given: store.load({"weight": torch.empty(BYTES // 4)}, **given),
    "read": lambda store, given: store.read(**given),
    "damaged_keys": lambda store, given: store.damaged_keys(**given),
    "merge": lambda store, given: store.merge([1, 2], into=8, **given),
}


@pytest.fixture
def copied(big, tmp_path):
    """A store that a test may change."""
    path = tmp_path / "store"
    subprocess.run(["cp", "-r", "--reflink=auto", big, path], check=True)
    with cairn.open(path, mode="a", grace=0) as store:
        yield store


@pytest.mark.parametrize("name", CALLS)
def test_a_function_follows_a_call(copied, name):
    seen = []

    CALLS[name](copied, {"progress": lambda done, total: seen.append((done, total))})

    assert seen
    assert len({total for _, total in seen}) == 1
    assert all(0 < done <= total for done, total in seen)
    assert seen == sorted(seen)


def test_a_function_that_returns_false_cancels_the_call(copied):
    with pytest.raises(cairn.Unavailable):
        CALLS["save"](copied, {"progress": lambda *_: False})

    assert copied.steps() == [1, 2]
    assert copied.read_slice("weight", [(0, 2)]).shape == (2,)


def test_an_exception_in_a_function_is_raised_by_the_call(copied):
    with pytest.raises(ZeroDivisionError):
        CALLS["read"](copied, {"progress": lambda *_: 1 / 0})


def test_the_setting_of_a_store_applies_to_its_calls_and_an_argument_replaces_it(big):
    seen, other = [], []
    with cairn.open(big, progress=lambda *given: seen.append(given)) as store:
        store.read()
        count = len(seen)
        store.read(progress=lambda *given: other.append(given))
        store.read(progress=False)

    assert count > 0
    assert other
    assert len(seen) == count


def test_a_function_may_use_the_store(big):
    seen = []
    with cairn.open(big) as store:
        store.read(progress=lambda *_: seen.append(len(store.read(step=1))))

    assert set(seen) == {1}


def follower():
    """A function that follows a call, what it was called with, and a switch that cancels."""
    seen: list[tuple[int, int]] = []
    answers: list[bool] = []

    def follow(done: int, total: int) -> bool | None:
        seen.append((done, total))
        return answers[-1] if answers else None

    return follow, seen, answers


def until_reported(attempt) -> None:
    """Calls ``attempt`` with numbers of new steps until it returns true: work that ends before the
    wait for it begins reports nothing."""
    assert any(attempt(step) for step in range(9, 60))


def test_the_waits_for_a_save_in_the_background_follow_it(copied):
    follow, seen, _ = follower()
    state = {"weight": torch.randn(BYTES // 4)}

    def save(step: int) -> bool:
        handle = copied.save_async(step, state, tuning=COMPRESSED, progress=follow)
        state["weight"].add_(1)
        assert handle.result().step == step
        return bool(seen)

    until_reported(save)
    assert all(0 < done <= total == BYTES for done, total in seen)
    assert seen == sorted(seen)


def test_a_function_may_end_the_wait_and_the_save_continues(copied):
    def save(step: int) -> bool:
        state = {"weight": torch.randn(BYTES // 4)}
        answers = [False]
        handle = copied.save_async(step, state, tuning=COMPRESSED, progress=lambda *_: answers[0])
        try:
            handle.result()
        except cairn.Unavailable as error:
            assert "the save continues" in str(error)
            answers[0] = True
            assert handle.result().step == step == copied.steps()[-1]
            return True
        return False

    until_reported(save)


def test_closing_a_store_follows_what_it_waits_for_and_cannot_be_cancelled(tmp_path):
    def close(step: int) -> bool:
        seen = []
        path = tmp_path / str(step)
        with cairn.open(path, mode="a", progress=lambda *given: seen.append(given)) as store:
            store.save_async(9, {"weight": torch.randn(BYTES // 4)}, tuning=COMPRESSED)
        assert steps_of(path) == [9]
        return bool(seen)

    until_reported(close)


def test_the_waits_for_mirrors_follow_the_copies(copied, tmp_path, monkeypatch):
    report, goes_on = MirrorWorker._report_progress, threading.Event()

    def hold(*arguments) -> bool:
        return report(*arguments) and goes_on.wait(600)

    def follow(done: int, total: int) -> None:
        totals.append(total)
        if total > part["weight"].nbytes:  # the length of a segment
            goes_on.set()

    # A copy that has reported its progress continues once the wait has done so, too.
    monkeypatch.setattr(MirrorWorker, "_report_progress", hold)
    mirror = cairn.Mirror(tmp_path / "mirror", max_rate=64 << 20)
    part = {"weight": torch.randn(BYTES // 8)}
    totals: list[int] = []
    copied.save_async(9, part, mirror=mirror, progress=follow).mirrored()
    assert max(totals) > part["weight"].nbytes
    goes_on.clear()
    copied.save(10, {"weight": part["weight"] + 1}, mirror=mirror)
    with pytest.raises(cairn.Unavailable, match="the copies continue"):
        copied.wait_mirrored(progress=lambda *_: False)
    goes_on.set()
    copied.wait_mirrored()
    assert steps_of(tmp_path / "mirror") == [9, 10]


def test_a_writer_counts_all_that_was_added(store):
    follow, seen, answers = follower()
    part = torch.randn(8 << 20)
    with store.writer(1, tuning=COMPRESSED, progress=follow) as writer:
        for added in range(1, 100):
            writer.add(f"large.{added}", part)
            if seen and seen[-1][0] > part.nbytes:
                break
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert all(0 < count <= added * part.nbytes for count in counts)
    assert {total for _, total in seen} == {0}
    answers.append(False)
    with pytest.raises(cairn.Unavailable), store.writer(2, progress=follow) as writer:
        for i in range(10_000):
            writer.add(f"small.{i}", part[:100_000])
    assert store.steps() == [1]


@with_ranks(2)
def test_ranks_follow_loads_in_which_they_read_for_each_other(rank, big):
    """Follows, cancels and breaks loads in which one rank reads for both."""
    mesh = init_device_mesh("cpu", (2,))
    state = {"weight": distribute_tensor(torch.zeros(BYTES // 4), mesh, [Replicate()])}
    follow, seen, _ = follower()
    _cairn.set_progress_interval(0)
    with cairn.open(big) as store:
        store.load(state, step=1, read_once=True, progress=follow)
        assert seen
        assert all(0 <= done <= total <= BYTES for done, total in seen)

        cancel = (lambda *_: False) if rank == 0 else False
        with pytest.raises(cairn.Unavailable):
            store.load(state, step=1, read_once=True, progress=cancel)

        fail = (lambda *_: 1 / 0) if rank == 0 else False
        with pytest.raises(ZeroDivisionError if rank == 0 else cairn.Unavailable):
            store.load(state, step=1, read_once=True, progress=fail)

        store.load(state, step=1, read_once=True)  # the ranks can still communicate

    error = cairn.Invalid if rank == 0 else cairn.Unavailable
    with pytest.raises(error), cairn.open(big) as store:
        nested = (lambda *_: store.load(state, step=1, read_once=True)) if rank == 0 else False
        store.load(state, step=1, read_once=True, progress=nested)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """The clock of the displays."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))  # pytest sets that of sys
    monkeypatch.setitem(sys.modules, "tqdm", None)
    return made


MIB = 1 << 20


def test_a_line_with_rate_and_remaining_time_is_drawn_and_removed(clock, terminal):
    with progress.Display("copying step") as display:
        for clock.now, done in ((0, 10), (0.9, 20)):
            display.update_step(1, done * MIB, 100 * MIB)
        assert terminal.getvalue() == "", "nothing is drawn in the first second"
        clock.now = 2.0
        display.update_step(1, 40 * MIB, 100 * MIB)
        line = "copying step 1 40.0 MiB of 100 MiB (40.0 %)  15.0 MiB/s  4 s left"
        assert terminal.getvalue() == "\r\033[K" + line
        display.update_step(2, 1 * MIB, 2 * MIB)
        second = "copying step 2 1.00 MiB of 2.00 MiB (50.0 %)"
        assert terminal.getvalue().endswith("left" + 2 * "\r\033[K" + second)
    assert terminal.getvalue().endswith(second + "\r\033[K")


@pytest.mark.parametrize("total", [100 * MIB, 0])
def test_tqdm_draws_a_bar_if_it_is_installed(clock, terminal, monkeypatch, total):
    monkeypatch.delitem(sys.modules, "tqdm")
    pytest.importorskip("tqdm")
    display = progress.Display("copying step 1")
    for clock.now in (0, 2):
        display.update(40 * MIB, total)
    display.clear()
    drawn = terminal.getvalue()
    assert re.search(r"copying step 1: +40%\|" if total else r"copying step 1: [\d.]+MB? \[", drawn)


def test_nothing_is_drawn_without_a_terminal_or_on_other_ranks(clock, terminal, monkeypatch):
    with progress.showing(True, "loading", rank=1):
        assert not progress.is_followed()
    file = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=file))
    display = progress.Display("loading")
    clock.now = 2
    display.update(1, 2)
    with progress.showing(True, "loading", rank=0):
        assert not progress.is_followed()
    assert file.getvalue() == ""


# The first line is drawn at once, and is followed by Ctrl-C.
INTERRUPTED = """
    import os, signal, sys, cairn
    from cairn._base import progress

    sys.modules["tqdm"] = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    update, progress._QUIET_SECONDS = progress.Display.update, 0

    def draw(display, *given):
        update(display, *given)
        os.kill(os.getpid(), signal.SIGINT)

    progress.Display.update = draw
    with cairn.open(sys.argv[1], mode="a", grace=0) as store:
        try:
            store.compact(max_dead=0.0, max_rate=4 << 20, progress=True)
            sys.exit("the compaction was not interrupted")
        except KeyboardInterrupt:
            assert store.read_slice("weight", [(0, 2)], step=1).shape == (2,)
"""


def test_ctrl_c_ends_a_call_and_removes_its_line(tmp_path):
    path = tmp_path / "store"
    with cairn.open(path, mode="a", grace=0) as store:
        # Half of each segment is dead after the delete.
        for step in (1, 2):
            parts = {"weight": torch.randn(4 << 20), f"old.{step}": torch.randn(4 << 20)}
            store.save(step, parts)
        store.edit(1, into=3, drop=["old.1"])
        store.delete(1, 2)
        store.edit(3, into=1)
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), path]
    written, status = run_on_terminal(command, columns=100)
    assert status == 0, written
    assert "compacting" in written
    assert written.endswith("\r\x1b[K")
