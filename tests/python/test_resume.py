"""cairn.torch.resume and save: an interrupted training computes what an uninterrupted one computes,
bit for bit."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cairn_testing import assert_same
from interpreters import Program
from ranks import run_on_ranks, with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import cairn
import cairn.torch

LAST = 8


class Batches:
    """Stands for a stateful dataloader: batches in an order that it draws per epoch."""

    def __init__(self, rank: int = 0) -> None:
        self.order = torch.Generator().manual_seed(rank)
        self.left: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if not self.left:
                self.left = torch.randperm(5, generator=self.order).tolist()
            number = self.left.pop()
            yield torch.randn(4, 6, generator=torch.Generator().manual_seed(number))

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.get_state(), "left": list(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.set_state(state["order"])
        self.left = state["left"]


def epochs(loader: Any) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


class Training:
    """All that a training loop has. Its losses depend on each part, and on all generators."""

    def __init__(self, wrap: Any = lambda model: model, loader: Any = None, **options: Any) -> None:
        torch.manual_seed(0 if not dist.is_initialized() else dist.get_rank())
        random.seed(0)
        np.random.seed(0)
        generator = torch.Generator().manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.model = wrap(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, LAST)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.dataloader = Batches() if loader is None else loader
        self.options = {"rng": True, **options}
        self.losses: list[float] = []

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "scaler", "dataloader")
        return {**{name: getattr(self, name) for name in names}, **self.options}

    def run(self, store: cairn.Store | None, last: int = LAST) -> Training:
        """Continues to a step, and saves each one if there is a store."""
        start = 0 if store is None else cairn.torch.resume(store, **self.parts())
        for step, batch in enumerate(epochs(self.dataloader), start):
            if step == last:
                break
            self.optimizer.zero_grad()
            noise = random.random() + float(np.random.rand())
            loss = self.model(batch).square().mean() * noise
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.losses.append(loss.item())
            if store is not None:
                cairn.torch.save(store, step, **self.parts())
        return self

    def state(self) -> dict[str, Any]:
        parts = self.parts() | {"rng": None}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return {**states, "torch": torch.get_rng_state(), "draw": random.random()}


def interrupted(path: Path, make: Any, stops: tuple[int, ...] = (3, 4, LAST)) -> Training:
    """A training of which each part is a new object in a store that is opened again."""
    losses: list[float] = []
    for stop in stops:
        with cairn.open(path, mode="a") as store:
            training = make().run(store, stop)
        losses += training.losses
    training.losses = losses
    return training


def assert_same_training(got: Training, want: Training) -> None:
    assert [loss.hex() for loss in got.losses] == [loss.hex() for loss in want.losses]


def test_one_process_continues_bit_for_bit(path):
    whole = Training().run(None)
    state = whole.state()

    training = interrupted(path, Training)

    assert_same_training(training, whole)
    got = training.state()
    got["dataloader"]["left"] = state["dataloader"]["left"]  # one more batch was drawn
    got["dataloader"]["order"] = state["dataloader"]["order"]
    assert_same(got, state)


def ddp(rank: int, path: Path) -> None:
    def make() -> Training:
        return Training(DistributedDataParallel, Batches(rank))

    whole = make().run(None)
    training = interrupted(path, make)
    assert_same_training(training, whole)
    assert_same(dict(training.model.state_dict()), dict(whole.model.state_dict()))


def test_ddp_continues_bit_for_bit_with_the_data_and_the_generators_of_each_rank(path):
    run_on_ranks(ddp, path, world_size=2)
    # One process continues without the wrapper.
    training = Training(dataloader=None)
    with cairn.open(path) as store, pytest.raises(cairn.Invalid, match="lacks 'dataloader"):
        cairn.torch.resume(store, **training.parts() | {"dataloader": None})
    with cairn.open(path) as store:
        parts = training.parts() | {"dataloader": None}
        assert cairn.torch.resume(store, strict=False, **parts) == LAST


@pytest.mark.parametrize("state", [{}, {"buffer": []}])
def test_a_dataloader_may_have_a_state_without_values(store, state):
    class Loader:
        def state_dict(self) -> dict:
            return state

        def load_state_dict(self, state: dict) -> None:
            self.loaded = state

    loader, model = Loader(), torch.nn.Linear(2, 2)
    cairn.torch.save(store, 1, model=model, dataloader=loader)
    cairn.torch.resume(store, model=model, dataloader=loader)
    assert loader.loaded == state


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model


def fsdp(rank: int, path: Path, first: int, last: int) -> list[str]:
    torch.manual_seed(0)
    with cairn.open(path, mode="a") as store:
        training = Training(sharded)
        # All ranks compute the same, so that two of them sum the same numbers as four.
        start = cairn.torch.resume(store, **training.parts() | {"dataloader": None, "rng": False})
        assert start == first
        for step in range(start, last):
            batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            training.optimizer.zero_grad()
            training.model.eval()
            loss = training.model(batch).square().mean()
            training.scaler.scale(loss).backward()
            training.optimizer.step()
            training.scheduler.step()
            training.losses.append(loss.item().hex())
            parts = training.parts() | {"dataloader": None, "rng": False}
            cairn.torch.save(store, step, **parts)
        return training.losses


def test_fsdp2_on_four_ranks_continues_on_two_bit_for_bit(path, tmp_path):
    whole = run_on_ranks(fsdp, tmp_path / "whole", 0, LAST)[0]
    losses = run_on_ranks(fsdp, path, 0, 3)[0]
    losses += run_on_ranks(fsdp, path, 3, 5, world_size=2)[0]
    losses += run_on_ranks(fsdp, path, 5, LAST)[0]
    assert losses == whole
    with cairn.open(path) as store, cairn.open(tmp_path / "whole") as other:
        assert_same(store.read(step=LAST - 1), other.read(step=LAST - 1))


class Rows(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((6,), float(index))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own_generator", [False, True])
def test_a_stateful_dataloader_continues_bit_for_bit(path, workers, own_generator):
    """Epochs of three batches. Without a generator, an iteration draws from torch's."""
    kind = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> Training:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(3) if own_generator else None
        options = {"batch_size": 4, "shuffle": True, "generator": generator}
        return Training(loader=kind(Rows(), num_workers=workers, **options))

    whole = make().run(None)
    assert_same_training(interrupted(path, make, (2, 3, 4, LAST)), whole)


TRAIN = """
import sys, cairn, test_resume, torch
torch.set_num_threads(1)
with cairn.open(sys.argv[1], mode="a") as store:
    training = test_resume.Training()
    start = cairn.torch.resume(store, **training.parts())
    batches = iter(training.dataloader)
    for step in range(start, 40):
        training.optimizer.zero_grad()
        loss = training.model(next(batches)).square().mean()
        training.scaler.scale(loss).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()
        print(step, loss.item().hex(), flush=True)
        cairn.torch.save(store, step, async_=step % 2 == 1, **training.parts())
"""


def test_kills_at_random_moments_change_nothing(path, tmp_path):
    def run(store: Path, lines: int | None) -> list[tuple[int, str]]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = Program(["-c", TRAIN, str(store)], environment)
        found = []
        for line in child.stdout:
            step, loss = line.split()
            found.append((int(step), loss))
            if len(found) == lines:
                time.sleep(moments.random() / 50)  # at any moment of the save
                child.kill()  # and what it has printed until then is read
        errors = child.communicate()[1]
        assert child.returncode == (0 if lines is None else -signal.SIGKILL), errors
        return found

    moments = random.Random(45)
    whole = dict(run(tmp_path / "whole", None))
    found: list[tuple[int, str]] = []
    for _ in range(9):
        found += run(path, moments.randrange(1, 5))  # 36 steps at most, of 40
    found += run(path, None)
    assert dict(found) == whole
    assert all(whole[step] == loss for step, loss in found)


def test_a_new_run_starts_at_step_0_and_changes_nothing(store):
    training = Training()
    before = copy.deepcopy(training.state())
    random.seed(0)
    start = cairn.torch.resume(store, **training.parts())
    assert (start, start.step) == (0, None)
    assert_same(training.state(), before)


def test_the_start_is_after_the_step_and_the_base_is_not_resumed_from(store):
    training = Training()
    store.save(1, {"model": training.model}, tags=["base"])
    assert cairn.torch.resume(store, base="base", **training.parts()) == 0
    report = cairn.torch.save(store, 5, tags=["t"], **training.parts())
    assert isinstance(report, cairn.SaveReport)
    cairn.torch.save(store, 6, async_=True, **training.parts()).result()
    start = cairn.torch.resume(store, step="t", base=1, **training.parts())
    assert (start, start.step) == (6, 5) == (pickle.loads(pickle.dumps(start)), 5)


def test_lists_of_models_and_other_states_are_saved(store):
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)]
    cairn.torch.save(store, 1, model=models, more={"epoch": 4})
    others, more = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)], {"epoch": 0}
    assert cairn.torch.resume(store, model=others, more=more) == 2
    for model, other in zip(models, others):
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert more == {"epoch": 4}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {}}, "model=dict: an object with state_dict"),
        ({"model": torch.nn.Linear(1, 1), "dataloader": [1]}, "dataloader=list"),
        ({"more": {"scaler": 1}}, "pass it as scaler="),
    ],
)
def test_what_cannot_be_a_part_is_refused(store, parts, message):
    for call in (
        lambda: cairn.torch.resume(store, **parts),
        lambda: cairn.torch.save(store, 1, **parts),
    ):
        with pytest.raises(cairn.Invalid, match=message):
            call()
    assert store.steps() == []


def test_a_step_without_the_generators_is_refused_before_anything_changes(store):
    training = Training()
    cairn.torch.save(store, 1, **training.parts() | {"rng": False})
    training.run(None, 2)
    before = copy.deepcopy(dict(training.model.state_dict()))
    with pytest.raises(cairn.NotFound, match="resume with rng=False"):
        cairn.torch.resume(store, **training.parts())
    assert_same(dict(training.model.state_dict()), before)


def test_a_step_without_the_generators_can_be_resumed_in_part(store):
    training = Training()
    cairn.torch.save(store, 1, **training.parts() | {"rng": False, "dataloader": None})
    random.seed(5)
    with pytest.warns(RuntimeWarning) as caught:
        assert cairn.torch.resume(store, strict=False, **training.parts()) == 2
    assert ["'dataloader'" in str(one.message) for one in caught] == [True, False]
    assert "no state of 'rng', which remains as it is" in str(caught[1].message)
    assert random.random() == random.Random(5).random()


@with_ranks(2)
def test_a_rank_without_a_key_of_the_step_is_no_error_if_another_has_one(rank, path):
    def parts(names: list[str]) -> dict[str, Any]:
        return {"more": {names[rank]: torch.ones(2)}, "strict": False}

    with cairn.open(path, mode="a") as store:
        cairn.torch.save(store, 1, more={"a": torch.zeros(2), "b": torch.zeros(2)})
        matching = parts(["a", "other"])
        assert cairn.torch.resume(store, **matching) == 2
        assert matching["more"][["a", "other"][rank]].sum() == 2 * rank
        with pytest.raises(cairn.NotFound, match="no key of the state, which has 'x'"):
            cairn.torch.resume(store, **parts(["x", "other"]))


def test_an_address_in_place_of_a_store_is_refused(path):
    for call in (
        lambda: cairn.torch.resume(str(path)),
        lambda: cairn.torch.save(path, 1),
        lambda: cairn.torch.Saver(str(path), every=1),
    ):
        with pytest.raises(cairn.Invalid, match=rf"cairn.open\('{path}', mode='a'\) returns"):
            call()


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"b": torch.ones(2)}, "which takes keys="),
        ({"a": torch.ones(3)}, "use Store.load with keys='!a' to leave it out"),
        ({"a": torch.ones(2, dtype=torch.bfloat16)}, "use Store.load with cast=True"),
        ({"net": {"a": torch.ones(2)}}, "use Store.load with rename="),
        ({}, "which takes keys="),
    ],
)
def test_errors_propose_what_the_called_function_takes(store, given, advice):
    store.save(1, {"a": torch.zeros(2)})
    store.save(2, {"a": torch.zeros(2)})
    with pytest.raises(cairn.Error, match=re.escape(advice)) as caught:
        cairn.torch.resume(store, more=given)
    assert not hasattr(caught.value, "__notes__")  # step 2 continues from step 1
    with cairn.torch.Saver(store, every=1, signals=()) as saver:
        with pytest.raises(cairn.Error, match=re.escape(advice)):
            saver.resume(given)


def test_a_first_step_that_lacks_keys_may_be_a_base(store):
    store.save(1, {"a": torch.zeros(2)})
    with pytest.raises(cairn.NotFound) as caught:
        cairn.torch.resume(store, more={"a": torch.zeros(2), "b": 1})
    assert "pass base=1 to cairn.torch.resume" in caught.value.__notes__[0]
    with pytest.raises(cairn.NotFound) as caught:
        cairn.torch.resume(store, step=1, more={"a": torch.zeros(2), "b": 1})
    assert not hasattr(caught.value, "__notes__")


@with_ranks(2)
def test_more_ranks_keep_their_own_generators_with_a_warning(rank, path):
    model = torch.nn.Linear(2, 2)
    if rank == 0:
        with cairn.open(path, mode="a", alone=True) as store:
            cairn.torch.save(store, 1, model=model, rng=True)
    dist.barrier()
    with cairn.open(path, mode="a") as store:
        if rank == 0:
            cairn.torch.resume(store, model=model, rng=True)
        else:
            with pytest.warns(RuntimeWarning, match="rank 1 keeps its random generators"):
                cairn.torch.resume(store, model=model, rng=True)
