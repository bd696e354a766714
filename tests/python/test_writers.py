"""One writer at a time: the lease, take_over, and the grace period of deleted steps."""

from __future__ import annotations

import os
import re
import socket

import pytest
import torch
from cairn_testing import run_python, segment_files
from ranks import run_on_ranks

import cairn

WRITER = r"process {pid} on host {host} \(writer since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)"


def describes(error: cairn.Error, pid: int) -> bool:
    """Whether the message names this host, the process and the time."""
    pattern = WRITER.format(pid=pid, host=re.escape(socket.gethostname()))
    return re.search(pattern, str(error)) is not None


# The second writer --------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_the_first_is_and_since_when(path, store):
    with pytest.raises(cairn.Conflict) as caught:
        cairn.open(path, mode="a")
    assert describes(caught.value, os.getpid()) and "this process: " in str(caught.value)
    assert str(path) in caught.value.file
    other = run_python(
        """
        import sys, cairn
        try:
            cairn.open(sys.argv[1], mode="a")
        except cairn.Conflict as error:
            print(error)
        """,
        path,
    )
    assert f"process {os.getpid()} on host" in other.stdout
    assert "this process" not in other.stdout and "take over" in other.stdout
    store.save(1, {"v": 1})


def test_take_over_fences_the_first_writer(path):
    first = cairn.open(path, mode="a")
    first.save(1, {"v": 1})
    second = cairn.open(path, mode="a", take_over=True)
    second.save(2, {"v": 2})
    for change in (
        lambda: first.save(3, {"v": 3}),
        lambda: first.save(1, {"v": 3}, overwrite=True),
        lambda: first.save_async(4, {"v": 4}).result(),
        lambda: first.delete(1),
        lambda: first.prune(keep_every=1000),
    ):
        with pytest.raises(cairn.Conflict) as caught:
            change()
        assert describes(caught.value, os.getpid()), str(caught.value)
    first.close()
    second.save(5, {"v": 5})
    second.close()
    with cairn.open(path) as reader:
        assert reader.steps() == [1, 2, 5]
        assert [reader.read(step=step)["v"] for step in (1, 2, 5)] == [1, 2, 5]


def take_over_together(rank, path):
    with cairn.open(path, mode="a", take_over=rank == 0, grace=0) as store:
        store.save(2, {"t": torch.full((1000,), 2.0), f"own{rank}": rank})
        store.delete(1)
        return store.steps()


def test_rank_0_takes_over_for_all_ranks(path):
    first = cairn.open(path, mode="a")
    first.save(1, {"t": torch.ones(1000)})
    (segment,) = segment_files(path)
    assert run_on_ranks(take_over_together, path, world_size=2) == [[2], [2]]
    assert not segment.exists()
    with pytest.raises(cairn.Conflict):
        first.save(3, {})
    first.close()


def test_readers_cannot_take_over(path, store):
    with pytest.raises(cairn.Invalid, match="take_over"):
        cairn.open(path, take_over=True)


# The grace period ---------------------------------------------------------------------------------


@pytest.mark.parametrize("grace", [-1, -0.001, float("nan"), float("-inf")])
def test_an_impossible_grace_is_refused(path, grace):
    with pytest.raises(cairn.Invalid, match="grace"):
        cairn.open(path, mode="a", grace=grace)
    assert not path.exists()
