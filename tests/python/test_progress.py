"""Progress of long calls: the function, the line, the bar of tqdm, and cancellation."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest
import torch
from ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import cairn

# Compressed, so that each call takes several intervals of 100 ms.
BYTES = 128 << 20


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """The path of a store with two steps."""
    path = tmp_path_factory.mktemp("progress") / "store"
    with cairn.open(path, mode="a") as store:
        state = {"weight": torch.randn(BYTES // 4)}
        store.save(1, state, compress=True)
        state["weight"].mul_(1.5)
        store.save(2, state, compress=True)
    return path


CALLS = {
    "save": lambda store, given: store.save(
        9, {"weight": torch.randn(BYTES // 4)}, compress=True, **given
    ),
    "load": lambda store, given: store.load({"weight": torch.empty(BYTES // 4)}, **given),
    "read": lambda store, given: store.read(**given),
    "damaged_keys": lambda store, given: store.damaged_keys(**given),
    "merge": lambda store, given: store.merge([1, 2], into=8, **given),
    "compact": lambda store, given: store.compact(
        compress=True, max_dead=0.0, max_rate=BYTES // 2, **given
    ),
}


@pytest.fixture
def copied(big, tmp_path):
    """A store that a test may change."""
    path = tmp_path / "store"
    subprocess.run(["cp", "-r", "--reflink=auto", big, path], check=True)
    with cairn.open(path, mode="a", grace=0) as store:
        yield store


@pytest.mark.parametrize("name", [name for name in CALLS if name != "compact"])
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


def test_the_waits_for_a_save_in_the_background_follow_it(copied):
    follow, seen, _ = follower()

    handle = copied.save_async(
        9, {"weight": torch.randn(BYTES // 4)}, compress=True, progress=follow
    )
    assert handle.result().step == 9

    assert seen
    assert all(0 < done <= total == BYTES for done, total in seen)
    assert seen == sorted(seen)


def test_a_function_may_end_the_wait_and_the_save_continues(copied):
    follow, _, answers = follower()
    answers.append(False)
    handle = copied.save_async(
        9, {"weight": torch.randn(BYTES // 4)}, compress=True, progress=follow
    )

    with pytest.raises(cairn.Unavailable, match="the save continues"):
        handle.result()

    answers[:] = [True]
    assert handle.result().step == 9
    assert copied.steps() == [1, 2, 9]


def test_closing_a_store_follows_what_it_waits_for_and_cannot_be_cancelled(tmp_path):
    seen = []
    with cairn.open(
        tmp_path / "store", mode="a", progress=lambda *given: seen.append(given) is not None
    ) as store:
        store.save_async(9, {"weight": torch.randn(BYTES // 4)}, compress=True)

    assert seen
    with cairn.open(tmp_path / "store") as reader:
        assert reader.steps() == [9]


def test_the_waits_for_mirrors_follow_the_copies(copied, tmp_path):
    follow, seen, answers = follower()
    mirror = cairn.Mirror(tmp_path / "mirror", max_rate=64 << 20)
    part = {"weight": torch.randn(BYTES // 8)}

    copied.save_async(9, part, mirror=mirror, progress=follow).mirrored()
    totals = {total for _, total in seen}
    assert len(totals) >= 1
    assert max(totals) > part["weight"].nbytes  # the length of a segment

    copied.save(10, {"weight": part["weight"] + 1}, mirror=mirror)
    answers.append(False)
    with pytest.raises(cairn.Unavailable, match="the copies continue"):
        copied.wait_mirrored(progress=follow)
    copied.wait_mirrored()
    with cairn.open(tmp_path / "mirror") as reader:
        assert reader.steps() == [9, 10]


def test_a_writer_counts_all_that_was_added(tmp_path):
    follow, seen, answers = follower()
    part = torch.randn(8 << 20)
    with cairn.open(tmp_path / "store", mode="a") as store:
        with store.writer(1, compress=True, progress=follow) as writer:
            for i in range(4):
                writer.add(f"large.{i}", part)
        counts = [done for done, _ in seen]
        assert counts == sorted(counts)
        # When the first count comes depends on the machine; they go on from tensor to tensor.
        assert all(0 < count <= 4 * part.nbytes for count in counts)
        assert counts[-1] > part.nbytes
        assert {total for _, total in seen} == {0}

        answers.append(False)
        with pytest.raises(cairn.Unavailable), store.writer(2, progress=follow) as writer:
            for i in range(10_000):
                writer.add(f"small.{i}", part[:100_000])
        assert store.steps() == [1]


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory):
    """The path of a store with a step of many chunks."""
    path = tmp_path_factory.mktemp("many") / "store"
    with cairn.open(path, mode="a") as store:
        store.save(1, {"old": torch.arange(40 << 20, dtype=torch.uint8)}, chunk_bytes=256)
    return path


def test_an_edit_counts_records(many_chunks):
    follow, seen, answers = follower()
    with cairn.open(many_chunks, mode="a") as store:
        store.edit(1, into=2, rename={"old": "new"}, progress=follow)
        assert seen
        assert all(0 < done <= total for done, total in seen)
        assert {total for _, total in seen} == {(40 << 20) // 256 + 1}

        answers.append(False)
        with pytest.raises(cairn.Unavailable):
            store.edit(1, into=3, rename={"old": "new"}, progress=follow)
        assert store.steps() == [1, 2]


def test_a_fork_into_another_store_is_followed(big, tmp_path):
    follow, seen, answers = follower()
    with cairn.open(big) as store:
        store.fork(1, to=tmp_path / "other", progress=follow)
        assert seen == sorted(seen)
        assert seen[-1][1] > BYTES // 2
        answers.append(False)
        with pytest.raises(cairn.Unavailable):
            store.fork(1, to=tmp_path / "third", progress=follow)


def load_once(rank, path):
    """Follows, cancels and breaks loads in which one rank reads for both."""
    mesh = init_device_mesh("cpu", (2,))
    state = {"weight": distribute_tensor(torch.zeros(BYTES // 4), mesh, [Replicate()])}
    follow, seen, _ = follower()
    with cairn.open(path) as store:
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


def test_ranks_follow_loads_in_which_they_read_for_each_other(big):
    run_on_ranks(load_once, big, world_size=2)


def run_on_terminal(source: str, *args: object) -> tuple[str, int]:
    """Runs a script whose standard error is a terminal. Returns what it has written there."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
        stderr=terminal,
    )
    os.close(terminal)
    written = b""
    try:
        while part := os.read(controller, 65536):
            written += part
    except OSError:  # EIO: the program has ended
        pass
    finally:
        os.close(controller)
    return written.decode(), program.wait(120)


# A copy with a limited rate takes more than a second on every machine.
COPY = """
    import sys, cairn
    if sys.argv[3] == "line":
        sys.modules["tqdm"] = None
    with cairn.open(sys.argv[1]) as source, cairn.open(sys.argv[2], mode="a") as target:
        cairn.copy_steps(source, target, [1], max_rate=32 << 20, progress=True)
"""


def test_a_line_with_rate_and_remaining_time_is_drawn_and_removed(big, tmp_path):
    written, status = run_on_terminal(COPY, big, tmp_path / "copy", "line")

    assert status == 0
    pattern = r"copying step 1 [\d.]+ MiB of [\d.]+ MiB \([\d.]+ %\)  [\d.]+ MiB/s  \d+ s left"
    assert re.search(pattern, written), written
    assert written.endswith("\r\x1b[K")


def test_tqdm_draws_a_bar_if_it_is_installed(big, tmp_path):
    pytest.importorskip("tqdm")

    written, status = run_on_terminal(COPY, big, tmp_path / "copy", "tqdm")

    assert status == 0
    assert re.search(r"copying step 1: +\d+%\|.*MB?/s", written), written


def test_nothing_is_drawn_in_the_first_second_or_without_a_terminal(big, tmp_path):
    quick = "import sys, cairn; cairn.open(sys.argv[1]).read_slice('weight', [(0, 2)])"
    assert run_on_terminal(quick, big) == ("", 0)

    command = [sys.executable, "-c", textwrap.dedent(COPY), big, tmp_path / "copy", "line"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")


WAITS = """
    import sys, torch, cairn
    sys.modules["tqdm"] = None
    with cairn.open(sys.argv[1], mode="a", progress=True) as store:
        mirror = cairn.Mirror(sys.argv[2], max_rate=32 << 20)
        state = {"weight": torch.randn(24 << 20)}
        store.save_async(1, state, mirror=mirror).mirrored()
        state["weight"].add_(1)
        store.save_async(2, state, mirror=mirror)
"""


def test_a_handle_and_close_show_the_copies_to_mirrors(tmp_path):
    written, status = run_on_terminal(WAITS, tmp_path / "store", tmp_path / "mirror")

    assert status == 0
    amounts = r"[\d.]+ MiB of [\d.]+ MiB \([\d.]+ %\)  [\d.]+ MiB/s  \d+ s left"
    assert re.search("copying step 1 " + amounts, written), written
    assert re.search("copying to mirrors " + amounts, written), written
    assert written.endswith("\r\x1b[K")


STREAM = """
    import sys, time, torch, cairn
    if sys.argv[2] == "line":
        sys.modules["tqdm"] = None
    with cairn.open(sys.argv[1], mode="a", progress=True) as store, store.writer(1) as writer:
        for i in range(40):
            writer.add(f"t{i}", torch.full((1 << 18,), i))
            time.sleep(0.05)
"""


def test_a_writer_shows_the_rate_of_the_stream(tmp_path):
    written, status = run_on_terminal(STREAM, tmp_path / "store", "line")

    assert status == 0
    assert re.search(r"writing step 1 [\d.]+ MiB  [\d.]+ MiB/s", written), written
    assert "left" not in written
    assert written.endswith("\r\x1b[K")


def test_tqdm_shows_a_stream_without_an_end(tmp_path):
    pytest.importorskip("tqdm")

    written, status = run_on_terminal(STREAM, tmp_path / "store", "tqdm")

    assert status == 0
    assert re.search(r"writing step 1: [\d.]+MB? \[.*MB?/s", written), written


INTERRUPTED = """
    import os, signal, sys, threading, cairn
    sys.modules["tqdm"] = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with cairn.open(sys.argv[1], mode="a", grace=0) as store:
        threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            store.compact(max_dead=0.0, max_rate=4 << 20, progress=True)
            sys.exit("the compaction was not interrupted")
        except KeyboardInterrupt:
            assert store.read_slice("weight", [(0, 2)], step=1).shape == (2,)
"""


def test_ctrl_c_ends_a_call_and_removes_its_line(big, tmp_path):
    path = Path(tmp_path / "store")
    with cairn.open(path, mode="a", grace=0) as store:
        # Half of each segment is dead after the delete.
        for step in (1, 2):
            parts = {"weight": torch.randn(16 << 20), f"old.{step}": torch.randn(16 << 20)}
            store.save(step, parts)
        store.edit(1, into=3, drop=["old.1"])
        store.delete(1, 2)
        store.edit(3, into=1)

    written, status = run_on_terminal(INTERRUPTED, path)

    assert status == 0, written
    assert "compacting" in written
    assert written.endswith("\r\x1b[K")
