"""Multi-rank failures: errors, interruptions and deaths on one rank are raised on all ranks."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pathlib
import resource
import socket
import textwrap

import pytest
import torch
import torch.distributed as dist
from cairn_testing import Stateful, interrupt_when_waiting, steps_of, wait_until
from dtensors import assert_shard, sharded, whole
from interpreters import Program
from ranks import run_on_ranks, with_ranks
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard

import cairn
from cairn._ranks import arrival


class Unkept:
    """An object that no store can save."""


@with_ranks()
def test_a_rank_that_does_not_open_is_named_before_the_groups_timeout(rank, path):
    if rank == 0:  # whose timeout counts; the others have arrived
        group = distributed_c10d._get_process_group_store(dist.group.WORLD)
        arrivals = dist.PrefixStore("cairn/arrival/0", group)
        wait_until(lambda: arrivals.check(["rank1", "rank3"]))
    if rank == 2:  # the others have given up
        wait_until(lambda: len(list(path.parent.glob("gave-up-*"))) == 3)
    timeout = 0.2 if rank == 0 else 3600  # the others learn it at once
    with pytest.raises(cairn.Unavailable, match=f"rank 2 did not open .* {timeout} s"):
        cairn.open(path, mode="a", timeout=timeout)
    (path.parent / f"gave-up-{rank}").touch()
    with cairn.open(path, mode="a", timeout=600) as store:  # now all of them
        store.save(1, {"a": torch.ones(3)})
    assert steps_of(path) == [1]


@with_ranks(2)
def test_rank_0_is_named_if_it_does_not_open(rank, path):
    gave_up = path.with_name("gave-up")
    if rank == 0:
        wait_until(gave_up.exists)
    else:
        arrival._VERDICT_SECONDS = 0
        with pytest.raises(cairn.Unavailable, match="rank 0 did not open the store within 1 s"):
            cairn.open(path, mode="a", timeout=1)
        gave_up.touch()


@with_ranks(2)
def test_a_meeting_place_that_fails_is_an_error_of_the_open(rank, path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 0:  # the ranks of this test meet in a file
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    whom = "rank 0 cannot reach the other ranks" if rank == 0 else "rank 0 did not open"
    arrival._VERDICT_SECONDS = 0
    with pytest.raises(cairn.Unavailable, match=whom):
        cairn.open(path, mode="a", timeout=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize(
    "call", ["save", "save_async", "load", "delete", "pull", "check", "check_state", "writer"]
)
@with_ranks(3)
def test_ranks_that_do_not_make_a_call_are_named_after_a_short_deadline(rank, path, call):
    gave_up = path.with_name("gave-up")
    state = {"t": whole("even")}
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
    store = cairn.open(path, mode="a", arrival=0.2 if rank == 0 else 3600)
    calls = {
        "save": lambda: store.save(2, state),
        "save_async": lambda: store.save_async(2, state),
        "load": lambda: store.load(state),
        "delete": lambda: store.delete(1),
        "pull": lambda: store.pull(state, since=1),
        "check": lambda: store.check(state),
        "check_state": lambda: store.check_state(state),
        "writer": store.writer(2).__enter__,
    }
    text = f"ranks 1, 2 have not called {call} within 0.2 s of rank 0"
    if rank > 0:
        wait_until(gave_up.exists)
    with pytest.raises(cairn.Unavailable, match=f"^{'rank 0 has left: ' if rank else ''}{text}"):
        calls[call]()
    gave_up.touch()
    for later in (calls["load"], store.close):
        with pytest.raises(cairn.Invalid, match=text):
            later()
    store.abandon()


@with_ranks(2)
def test_a_rank_that_works_is_not_absent(rank, path):
    waits = path.with_name("waits")

    def work() -> None:  # the first that a delete does, on every rank
        if rank == 0:
            wait_until(waits.exists)
        else:
            ranks.arrival = 1e-6  # has passed when rank 0 has done its work
            waits.touch()

    with cairn.open(path, mode="a") as store:
        ranks = store.opened.ranks
        usual = ranks.arrival
        for step in (1, 2):
            store.save(step, {"t": whole("even")})
        store.opened.wait_for_last_save = work
        store.delete(1)
        del store.opened.wait_for_last_save
        ranks.arrival = usual
        assert store.steps() == [2]


@with_ranks(2)
def test_the_error_that_ends_a_block_is_known_on_the_other_ranks(rank, path):
    expected = ZeroDivisionError if rank else cairn.Unavailable
    text = "^own" if rank else "^rank 1 has left: ZeroDivisionError: own"
    with pytest.raises(expected, match=text):
        with cairn.open(path, mode="a") as store:
            if rank:
                raise ZeroDivisionError("own")
            store.save(1, {"t": whole("even")})


@pytest.mark.parametrize("is_async", [False, True])
@with_ranks()
def test_the_cause_is_known_on_all_ranks_although_rank_0_has_closed_the_store(rank, path, is_async):
    """Rank 0 refuses what the ranks hold, and closes the store before the others have asked."""
    closed = path.with_name("closed")
    store = cairn.open(path, mode="a")
    store.save(1, {"t": torch.zeros(3)})
    state = {"t": torch.zeros(3 + rank // 3)}
    tuning = cairn.SaveTuning(differing="ignore")
    with pytest.raises(cairn.Invalid, match="rank 3") as raised:
        if is_async:
            store.save_async(2, state, tuning=tuning).result()
        else:
            store.save(2, state, tuning=tuning)
    assert raised.value.key == "t"
    if rank == 0:
        with contextlib.suppress(cairn.Error):
            store.abandon()
        closed.touch()


@with_ranks()
def test_what_goes_wrong_on_one_rank_is_raised_on_all(rank, path):
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


@pytest.mark.parametrize("call", ["save", "load", "close"])
@with_ranks(2)
def test_ctrl_c_ends_the_waiting_for_other_ranks(rank, path, call):
    """Rank 0 is interrupted while it waits for rank 1, which joins after the interruption."""
    store = cairn.open(path, mode="a")
    state = {"t": whole("even")}
    store.save(1, state)
    calls = {
        "save": lambda: store.save(2, state),
        "load": lambda: store.load(state, read_once=True),
        "close": store.close,
    }
    if rank == 0:
        with pytest.raises(KeyboardInterrupt):
            interrupt_when_waiting()
            calls[call]()
    dist.barrier()
    if rank == 1:
        # At once, and not after the half hour that the store waits.
        with pytest.raises(cairn.Unavailable):
            calls[call]()
    dist.barrier()
    with contextlib.suppress(cairn.Error):
        store.abandon()


class Fussy(Stateful):
    """Refuses its state."""

    def load_state_dict(self, state):
        raise ValueError("does not fit")


@with_ranks()
def test_an_object_that_refuses_its_state_is_raised_on_all(rank, path):
    with cairn.open(path, mode="a") as store:
        good = {"m": Stateful(weight=torch.zeros(2))}
        store.save(1, good)
        expected = ValueError if rank == 1 else cairn.Unavailable
        with pytest.raises(expected, match="does not fit" if rank == 1 else "rank 1: ValueError"):
            store.load({"m": Fussy(weight=torch.zeros(2))} if rank == 1 else good)
        # All ranks have the error, so that they continue together.
        store.load(good)
        store.save(2, good)
    assert steps_of(path) == [1, 2]


@with_ranks()
def test_a_forked_child_leaves_the_connections_alone(rank, path):
    """Like the child of a data loader, the child drops the store and the connections."""
    state = {"t": whole("even")}
    store = cairn.open(path, mode="a")
    store.save(1, state)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.save(2, state)
        except cairn.Invalid as error:
            status = 0 if "fork" in str(error) else 2
        store = None
        gc.collect()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.save(2, state)
    store.load(state, read_once=True)
    store.close()


SCRIPT = """
import sys, torch, torch.distributed as dist, cairn

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
store = cairn.open(f"{folder}/store", mode="a")
store.save(1, {"t": torch.ones(3)})
if sys.argv[3] == "well":
    store.save_async(2, {"t": torch.ones(3)})
    sys.exit(0)  # the store is still open
if rank == 1:
    raise RuntimeError("of the training")
store.save(2, {"t": torch.ones(3)})
"""


@pytest.mark.parametrize("end", ["well", "badly"])
def test_stores_that_nobody_closed(tmp_path, end):
    source = textwrap.dedent(SCRIPT)
    processes = [
        Program(["-c", source, str(rank), str(tmp_path), end], finalizes=True) for rank in range(2)
    ]
    errors = [process.communicate(timeout=1200)[1] for process in processes]
    statuses = [process.returncode for process in processes]
    assert steps_of(tmp_path / "store") == ([1, 2] if end == "well" else [1])
    if end == "well":
        assert statuses == [0, 0], errors
    else:
        # Rank 0 detects immediately that rank 1 has exited.
        assert statuses == [1, 1] and "of the training" in errors[1]
        assert "Unavailable: rank 1 has left: RuntimeError: of the training" in errors[0]


def open_on_different_hosts(rank, path):
    import cairn._ranks.ranks

    cairn._ranks.ranks._this_host = lambda: (f"host {rank}", "")
    os.environ.update(MASTER_ADDR=socket.gethostname(), MASTER_PORT="1")
    before = connected_addresses()
    with cairn.open(path, mode="a") as store:
        store.save(1, {"t": whole("even")})
        new = connected_addresses()
    return {address for inode, address in new.items() if inode not in before}


def connected_addresses():
    """The local IPv4 address of each TCP connection of this process, by inode."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {
        row[9]: socket.inet_ntoa(bytes.fromhex(row[1].split(":")[0])[::-1])
        for row in rows
        if f"socket:[{row[9]}]" in own and row[3] == "01"
    }


def test_ranks_of_several_hosts_connect_along_the_route_to_the_master(path):
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("this host's name has no address")
    for addresses in run_on_ranks(open_on_different_hosts, path):
        assert addresses == {address}


@with_ranks()
def test_a_rank_that_cannot_listen_is_named_on_all_ranks(rank, path):
    if rank == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "203.0.113.1"
    text = r"203\.0\.113\.1" if rank == 1 else "rank 1 could not take part"
    with pytest.raises(cairn.Unavailable, match=text):
        cairn.open(path, mode="a")


@with_ranks()
def test_an_exception_of_the_process_group_is_raised(rank, path):
    def broken(*arguments, **keywords):
        if isinstance(arguments[1], bytes):
            raise ZeroDivisionError("of the group")
        return gather(*arguments, **keywords)

    gather, dist.all_gather_object = dist.all_gather_object, broken
    try:
        with pytest.raises(ZeroDivisionError, match="of the group"):
            cairn.open(path, mode="a")
    finally:
        dist.all_gather_object = gather
    with cairn.open(path, mode="a") as store:
        assert store.steps() == []
