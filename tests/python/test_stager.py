"""`cairn.torch.StateDictStager`: the staged state, the lifetime of its memory, all tensors; and
`CairnStager` under `torch.distributed.checkpoint.async_save`."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same, payload, resident_bytes, shares_storage
from torch.distributed.checkpoint.staging import AsyncStager

import cairn
from cairn._tensors import host_copies
from cairn.torch import CairnStager, Staged, StateDictStager
from cairn.torch._stager import CopiesUnderWay

# torch warns that there is no process group, which the tests of DCP intend.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

MIB = 1 << 20


@pytest.fixture
def stager():
    with StateDictStager() as made:
        yield made


class Point(NamedTuple):
    x: torch.Tensor
    name: str


@dataclasses.dataclass
class Moments:
    mean: torch.Tensor
    steps: list[int]


class Slotted:
    __slots__ = ("tensor", "unset")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Custom:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.nested = {"inner": [tensor]}
        self.me = self


class CopiesItself:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __deepcopy__(self, memo: dict) -> CopiesItself:
        return CopiesItself(copy.deepcopy(self.tensor, memo))


CONTAINERS = {
    "dict": (lambda t: {"a": t, 1: {"b": t}}, lambda s: s[1]["b"]),
    "tuple": (lambda t: (1, (t,)), lambda s: s[1][0]),
    "namedtuple": (lambda t: Point(t, "p"), lambda s: s.x),
    "OrderedDict": (lambda t: collections.OrderedDict(b=t, a=1), lambda s: s["b"]),
    "defaultdict": (lambda t: collections.defaultdict(list, k=[t]), lambda s: s["k"][0]),
    "deque": (lambda t: collections.deque([t], maxlen=3), lambda s: s[0]),
    "dataclass": (lambda t: Moments(t, [1, 2]), lambda s: s.mean),
    "slots": (lambda t: Slotted(t), lambda s: s.tensor),
    "object": (lambda t: Custom(t), lambda s: s.nested["inner"][0]),
    "own copy": (lambda t: CopiesItself(t), lambda s: s.tensor),
    "module": (lambda t: buffer_module(t), lambda s: s.kept),
    "method": (lambda t: Custom(t).__init__, lambda s: s.__self__.nested["inner"][0]),
}


def buffer_module(tensor: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("kept", tensor)
    return module


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_is_followed_and_made_anew(stager, name):
    make, find = CONTAINERS[name]
    source = torch.arange(6.0).reshape(2, 3)
    state = make(source)

    staged = stager.stage(state)
    want = source.clone()
    source.zero_()

    assert type(staged) is type(state) and staged is not state
    assert torch.equal(find(staged), want)
    assert find(staged).data_ptr() != source.data_ptr()


def test_attributes_and_order_of_containers_are_kept(stager):
    state = torch.nn.Linear(3, 2).state_dict()
    state["extra"] = collections.deque([1], maxlen=2)
    staged = stager.stage(state)
    assert list(staged) == list(state) and staged._metadata == state._metadata
    assert staged["extra"].maxlen == 2
    assert_same(dict(staged, extra=0), dict(collections.OrderedDict(state), extra=0))


def test_plain_values_stay_as_they_are(stager):
    values = [None, True, 3, 2.5, 1j, "s", b"b", torch.half, torch.device("cpu"), torch.Size([2])]
    staged = stager.stage(values + [(1, "same")])
    assert all(a is b for a, b in zip(staged, values))
    array = np.arange(4)
    copied = stager.stage({"n": array, "enum": Path("/x"), "set": {1, 2}, "fn": len})
    array[:] = 0
    assert copied["n"].tolist() == [0, 1, 2, 3]
    assert (copied["enum"], copied["set"], copied["fn"]) == (Path("/x"), {1, 2}, len)


def test_sharing_of_objects_and_cycles_are_kept(stager):
    shared = {"t": torch.ones(2)}
    state: dict[str, Any] = {"a": shared, "b": shared, "custom": Custom(torch.ones(1))}
    state["self"] = state
    state["tuple"] = ([],)
    state["tuple"][0].append(state["tuple"])

    staged = stager.stage(state)

    assert staged["a"] is staged["b"] and staged["a"] is not shared
    assert staged["self"] is staged and staged["custom"].me is staged["custom"]
    assert staged["tuple"][0][0] is staged["tuple"] and staged["tuple"] is not state["tuple"]


def test_views_share_one_copy_with_their_offsets_and_strides(stager):
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "whole": base,
        "again": base,
        "row": base[1],
        "turned": base.t(),
        "every": base[:, ::2],
        "bits": base.view(torch.int32),
        "parameter": torch.nn.Parameter(base[2:]),
        "scalar": base[3, 5],
        "expanded": base[0, :1].expand(1000),
    }
    staged = stager.stage(state)

    assert stager.copy_count == 1 and stager.copy_bytes == base.nbytes
    assert staged["whole"] is staged["again"]
    for key, source in state.items():
        copied = staged[key]
        assert shares_storage(copied, staged["whole"]), key
        assert copied.stride() == source.stride(), key
        assert copied.storage_offset() == source.storage_offset(), key
        assert payload(copied) == payload(source), key
    staged["whole"][1, 0] = -1
    assert staged["row"][0] == -1 and base[1, 0] == 6
    assert type(staged["parameter"]) is torch.nn.Parameter and staged["parameter"].requires_grad


def test_what_is_still_in_use_is_not_overwritten_by_the_next_staging(stager):
    weight = torch.ones(8)
    first = stager.stage({"weight": weight})
    row = first["weight"][2:4]
    del first
    weight.fill_(2)

    second = stager.stage({"weight": weight})

    assert row.tolist() == [1.0, 1.0]
    assert second["weight"].tolist() == [2.0] * 8
    assert stager.copy_count == 1


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_memory_after_many_stagings_is_that_after_two(shared):
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()

    def state() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    with StateDictStager(shared=shared) as stager:
        for _ in range(2):
            stager.stage(state())
        gc.collect()
        count, copied, resident = stager.copy_count, stager.copy_bytes, resident_bytes()
        for _ in range(28):
            stager.stage(state())
        gc.collect()
        assert (stager.copy_count, stager.copy_bytes) == (count, copied)
        assert copied > 48 * MIB
        assert resident_bytes() - resident < 8 * MIB


def test_a_freed_storage_frees_its_copy(stager):
    kept, freed = torch.ones(10), torch.ones(4 * MIB)
    view = freed[5:]
    host = weakref.ref(stager.stage([kept, freed])[1].untyped_storage())
    assert stager.copy_count == 2

    del freed
    gc.collect()
    assert stager.copy_count == 2, "a view keeps the storage alive"
    del view
    gc.collect()

    assert (stager.copy_count, stager.copy_bytes) == (1, 40)
    assert host() is None


def test_a_storage_that_changed_its_size_gets_a_new_copy(stager):
    tensor = torch.ones(4)
    first = stager.stage({"t": tensor})["t"]
    tensor.resize_(1000).fill_(2)

    second = stager.stage({"t": tensor})["t"]

    assert torch.equal(second, tensor) and torch.equal(first, torch.ones(4))
    assert (stager.copy_count, stager.copy_bytes) == (1, 4000)


def test_what_is_staged_outlives_the_stager():
    stager = StateDictStager()
    staged = stager.stage({"t": torch.arange(5)})
    stager.close()
    stager.close()
    assert staged["t"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(cairn.Invalid, match="closed"):
        stager.stage({})


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is no CUDA")
def test_pinned_memory_without_cuda_is_refused_in_words():
    with pytest.raises(cairn.Invalid, match="pinned=True: torch finds no CUDA device"):
        StateDictStager(pinned=True)


def test_what_cannot_be_staged_is_named_with_its_place(stager):
    message = r"state\['a'\]\[1\] is of type _thread.lock.*exclude it"
    with pytest.raises(cairn.Invalid, match=message):
        stager.stage({"a": [1, threading.Lock()]})
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(cairn.Invalid, match=r"state\['m'\].mean is a tensor without memory"):
        stager.stage({"m": Moments(freed, [])})
    assert stager.stage([torch.ones(1)])[0].item() == 1


class FakeEvent:
    def __init__(self) -> None:
        self.waited = False

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True


def test_a_handle_is_done_when_every_device_is(stager):
    events = [FakeEvent(), FakeEvent()]
    staged = Staged({"t": 1}, CopiesUnderWay(None, events))
    assert not staged.done()
    assert staged.wait() == {"t": 1}
    assert staged.done() and all(event.waited for event in events)


@pytest.fixture
def recorded(monkeypatch) -> list[FakeEvent]:
    """The code path of a device, on the host: each storage claims a device, and events are
    recorded."""
    made: list[FakeEvent] = []
    monkeypatch.setattr(
        host_copies, "_record_event", lambda device: made.append(FakeEvent()) or made[-1]
    )
    monkeypatch.setattr(host_copies, "_orders_by_stream", lambda storage: True)
    return made


def test_copies_behind_the_host_are_waited_for_before_they_are_filled_again(recorded):
    with StateDictStager() as stager:
        source = torch.ones(2)
        first = stager.stage_async({"a": source, "b": torch.zeros(2)})
        del source
        assert len(recorded) == 1 and not first.done()
        assert stager.copy_count == 2, "what is being copied is held"
        stager.stage_async({"a": torch.ones(2)}).wait()
        assert recorded[0].waited and first.done() and recorded[1].waited
        assert stager.copy_count == 0, "and let go then"
        stager.stage_async([torch.ones(1)])
    assert recorded[2].waited


def test_threads_may_stage_with_one_stager(stager):
    def work(value: int) -> None:
        tensor = torch.full((1000,), value)
        for _ in range(50):
            assert (stager.stage({"t": tensor})["t"] == value).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    gc.collect()
    assert stager.copy_count == 0


# Tensors that are not plain memory, and subclasses.


class Scaled(torch.Tensor):
    """A subclass over plain memory, with an attribute."""

    scale: torch.Tensor


class Pair(torch.Tensor):
    """A wrapper subclass."""

    @staticmethod
    def __new__(cls, left: torch.Tensor, right: torch.Tensor) -> Pair:
        made = torch.Tensor._make_wrapper_subclass(cls, left.shape, dtype=left.dtype)
        made.left, made.right = left, right
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["left", "right"], "context"

    @staticmethod
    def __tensor_unflatten__(inner: dict, context: Any, size: Any, stride: Any) -> Pair:
        assert context == "context"
        return Pair(inner["left"], inner["right"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} reached the wrapper")


def test_a_subclass_over_memory_keeps_its_type_and_attributes(stager):
    source = torch.arange(4.0).as_subclass(Scaled)
    source.scale = torch.full((1,), 3.0)
    staged = stager.stage({"s": source, "plain": source.as_subclass(torch.Tensor)})

    assert type(staged["s"]) is Scaled and staged["s"].tolist() == [0, 1, 2, 3]
    assert staged["s"].scale.item() == 3 and not shares_storage(staged["s"].scale, source.scale)
    assert shares_storage(staged["s"], staged["plain"])


def test_a_wrapper_is_made_anew_around_staged_parts(stager):
    left = torch.arange(4.0)
    source = Pair(left, left[:2])
    source.note = "kept"
    staged = stager.stage([source, left])

    assert type(staged[0]) is Pair and staged[0].note == "kept"
    assert staged[0].left is staged[1] and shares_storage(staged[0].right, staged[1])
    assert stager.copy_count == 1


@pytest.fixture
def one_rank(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_a_dtensor_keeps_its_mesh_and_placements(stager, one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1))
    source = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0), Replicate()])
    parameter = torch.nn.Parameter(source)
    staged = stager.stage({"d": source, "p": parameter})

    assert isinstance(staged["d"], DTensor) and staged["d"].placements == source.placements
    assert staged["d"].device_mesh is mesh and staged["d"].shape == (3, 4)
    local = staged["d"].to_local()
    assert torch.equal(local, source.to_local()) and not shares_storage(local, source.to_local())
    assert shares_storage(staged["p"].to_local(), local)
    assert staged["p"].requires_grad and isinstance(staged["p"], torch.nn.Parameter)
    with torch.no_grad():
        source.zero_()
    assert local.sum() == 66


def test_a_sharded_tensor_keeps_its_metadata_and_gets_staged_shards(stager, one_rank):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
    source = sharded_tensor.rand(spec, 6, 4)
    staged = stager.stage({"s": source})["s"]

    assert type(staged) is type(source) and staged.metadata() == source.metadata()
    (shard,), (want,) = staged.local_shards(), source.local_shards()
    assert shard.metadata == want.metadata and torch.equal(shard.tensor, want.tensor)
    assert not shares_storage(shard.tensor, want.tensor)
    del staged, shard
    assert source.local_shards()[0].tensor.shape == (6, 4)


def test_tensors_that_are_no_strided_memory(stager):
    complex_source = torch.randn(4, dtype=torch.complex64)
    indices = torch.tensor([[0, 2], [1, 0]])
    values = torch.tensor([3.0, 4.0])
    sparse = torch.sparse_coo_tensor(indices, values, (3, 3), check_invariants=True).coalesce()
    quantized = torch.quantize_per_tensor(torch.randn(5), 0.1, 2, torch.qint8)
    state = {
        "meta": torch.empty(3, device="meta"),
        "conj": complex_source.conj(),
        "neg": torch._neg_view(torch.arange(3.0)),
        "sparse": sparse,
        "quantized": quantized,
        "grown": (torch.ones(3, requires_grad=True) * 2),
        "empty": torch.empty(0, 3),
    }
    staged = stager.stage(state)

    assert staged["meta"] is state["meta"]
    assert staged["conj"].is_conj() and torch.equal(staged["conj"], complex_source.conj())
    assert staged["neg"].is_neg() and staged["neg"].tolist() == [0, -1, -2]
    assert torch.equal(staged["sparse"].to_dense(), sparse.to_dense())
    assert staged["sparse"].values().data_ptr() != sparse.values().data_ptr()
    assert torch.equal(staged["quantized"].int_repr(), quantized.int_repr())
    assert not staged["grown"].requires_grad and staged["grown"].tolist() == [2, 2, 2]
    assert staged["empty"].shape == (0, 3)


# Under DCP.


def load(path: Path, like: dict) -> dict:
    state = {key: torch.empty_like(value) for key, value in like.items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return state


def test_it_has_what_torch_asks_of_a_stager():
    stager = CairnStager()
    assert isinstance(stager, AsyncStager)
    assert stager.should_synchronize_after_execute is False
    stager.synchronize_staging()
    stager.close()
    stager.close()


def test_in_the_background_a_future_tells_when_the_state_may_change(tmp_path):
    state = {"w": torch.arange(1000.0)}
    stager = CairnStager(background=True)
    response = dcp.async_save(
        state,
        storage_writer=dcp.FileSystemWriter(tmp_path / "c"),
        async_stager=stager,
        no_dist=True,
    )
    response.staging_completion.result(60)
    stager.synchronize_staging()
    state["w"].zero_()
    response.upload_completion.result(60)
    assert load(tmp_path / "c", state)["w"].sum() == 999 * 500
    failed = stager.stage({"lock": threading.Lock()})
    assert isinstance(failed, Future)
    with pytest.raises(cairn.Invalid, match=r"state\['lock'\]"):
        failed.result(60)
    stager.close()
    with pytest.raises(RuntimeError):
        stager.stage({})


PROCESS_SAVE = """
    import os, sys, torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    from cairn.torch import CairnStager

    if __name__ == "__main__":
        path = sys.argv[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo", init_method=f"file://{path}/meet", rank=0, world_size=1)
        state = {"w": torch.zeros(1000), "part": None}
        state["part"] = state["w"][10:20]
        for step in range(4):
            if step % 2 == 0:
                stager = CairnStager(shared=step == 2)
            state["w"].fill_(step + 1)
            future = dcp.async_save(
                state,
                storage_writer=dcp.FileSystemWriter(f"{path}/{step}"),
                async_stager=stager,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
            state["w"].zero_()
            future.result(120)
            print(stager.stager.copy_count, stager.stager.copy_bytes, flush=True)
            if step % 2 == 1:
                stager.close()
        dist.destroy_process_group()
"""


def test_the_process_executor_writes_what_was_staged_in_private_and_in_shared_memory(tmp_path):
    script = tmp_path / "save.py"
    script.write_text(textwrap.dedent(PROCESS_SAVE))
    result = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=1200
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["1 4000"] * 4
    for step in range(4):
        got = load(tmp_path / str(step), {"w": torch.empty(1000), "part": torch.empty(10)})
        assert bool((got["w"] == step + 1).all()) and bool((got["part"] == step + 1).all())
