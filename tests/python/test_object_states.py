"""Objects with load_state_dict receive what a step contains, whatever state they have now."""

from __future__ import annotations

import subprocess
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn_testing import Stateful, assert_same
from process_suites import PROGRAMS
from ranks import run_on_ranks, with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn

warnings.filterwarnings("ignore", module="torch.optim")


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def train(model: torch.nn.Module, optimizer: Any, first: int, last: int) -> None:
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(16, 4, generator=generator)

        def loss_of(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(batch) ** 2).mean()
            loss.backward()
            if isinstance(optimizer, torch.optim.SparseAdam):
                for parameter in model.parameters():
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        optimizer.step(loss_of)


def _muon(model: torch.nn.Module) -> Any:
    return torch.optim.Muon([each for each in model.parameters() if each.ndim == 2], lr=0.01)


def _of(name: str, **options: Any) -> Any:
    def make(model: torch.nn.Module) -> Any:
        return getattr(torch.optim, name)(list(model.parameters()), **options)

    return make


def _of_library(module: str, name: str) -> Any:
    def make(model: torch.nn.Module) -> Any:
        kind = getattr(pytest.importorskip(module), name)
        optimizer = kind(model.parameters(), lr=0.01)
        if hasattr(optimizer, "train"):
            optimizer.train()
        return optimizer

    return make


_NAMES = (
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS NAdam RAdam RMSprop Rprop SparseAdam"
)
OPTIMIZERS = {
    **{name: _of(name) for name in _NAMES.split()},
    "SGD with momentum": _of("SGD", lr=0.1, momentum=0.9),
    "AdamW with amsgrad": _of("AdamW", amsgrad=True),
    "Adam, capturable": _of("Adam", capturable=False, lr=torch.tensor(0.01), foreach=False),
    "Muon": _muon,
    "schedule-free": _of_library("schedulefree", "AdamWScheduleFree"),
    "8-bit": _of_library("torchao.optim", "AdamW8bit"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_new_optimizer_continues_bit_for_bit(store, name):
    model = new_model()
    optimizer = OPTIMIZERS[name](model)
    store.save(0, {"model": model, "optimizer": optimizer})
    train(model, optimizer, 0, 3)
    store.save(3, {"model": model, "optimizer": optimizer})
    train(model, optimizer, 3, 6)

    other = new_model()
    new = OPTIMIZERS[name](other)
    # Into an optimizer without a state, into one with a state, and back to before the first step.
    for step in (3, 3, 0):
        report = store.load({"model": other, "optimizer": new}, step)
        assert (report.missing, report.unexpected) == ((), ())
        train(other, new, step, 6)
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
        assert_same(new.state_dict(), optimizer.state_dict())


lrs = torch.optim.lr_scheduler
# Their states contain a function, a Counter, the states of others, or change their form.
SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda step: 0.9**step),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [2, 2, 4]),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler(
        [lrs.ConstantLR(o), lrs.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lrs.SequentialLR(
        o, [lrs.CosineAnnealingLR(o, 4), lrs.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, patience=1),
    "CyclicLR": lambda o: lrs.CyclicLR(
        o, 0.01, 0.1, 2, scale_fn=lambda step: 1 / step, scale_mode="cycle"
    ),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.1, 10),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_new_scheduler_continues_bit_for_bit(store, name):
    def rates(optimizer: Any, scheduler: Any, first: int, last: int) -> list[float]:
        found = []
        for step in range(first, last):
            optimizer.step()
            plateau = isinstance(scheduler, lrs.ReduceLROnPlateau)
            scheduler.step(*([float(step > 1)] if plateau else []))
            found.append(optimizer.param_groups[0]["lr"])
        return found

    def new() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(new_model().parameters(), lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    optimizer, scheduler = new()
    rates(optimizer, scheduler, 0, 3)
    store.save(3, {"optimizer": optimizer, "scheduler": scheduler})
    want = rates(optimizer, scheduler, 3, 8)

    optimizer, scheduler = new()
    store.load({"optimizer": optimizer, "scheduler": scheduler})

    assert rates(optimizer, scheduler, 3, 8) == want


class Average:
    """The moving averages of parameters, which exist from the first update on."""

    def __init__(self) -> None:
        self.shadow: dict[str, torch.Tensor] = {}
        self.counts: dict[str, int] = Counter()
        self.losses: list[Any] = []

    def update(self, model: torch.nn.Module, loss: float) -> None:
        for name, value in model.named_parameters():
            before = self.shadow.get(name, torch.zeros_like(value))
            self.shadow[name] = (0.9 * before + 0.1 * value).detach()
            self.counts[name] += 1
        self.losses.append(torch.tensor([loss] * (len(self.losses) + 1)))

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("updates", [0, 2, 5])
def test_dicts_and_lists_of_an_object_grow_and_shrink(store, updates):
    average, other = Average(), Average()
    for step in range(3):
        average.update(new_model(), step)
    store.save(3, {"ema": average})
    for step in range(updates):
        other.update(new_model(), step)

    store.load({"ema": other})

    assert_same(other.state_dict(), average.state_dict())
    other.counts["new"] += 1  # still a Counter


class WithExtraState(torch.nn.Module):
    """As in Transformer Engine: the extra state exists from the first step on."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("stored", [torch.arange(3), {"amax": torch.ones(2), "n": 1}, [1, 2], None])
@pytest.mark.parametrize("given", [None, torch.zeros(5), {"amax": torch.zeros(4)}])
def test_an_extra_state_may_have_any_form(store, stored, given):
    store.save(1, {"model": torch.nn.Sequential(WithExtraState(stored))})
    model = torch.nn.Sequential(WithExtraState(given))

    store.load({"model": model})

    assert_same(model[0].extra, stored)


def test_a_lazy_module_receives_its_parameters(store):
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    model(torch.ones(1, 3))
    store.save(1, {"model": model})

    new = torch.nn.Sequential(torch.nn.LazyLinear(2))
    store.load({"model": new})

    assert_same(dict(new.state_dict()), dict(model.state_dict()))


def test_a_step_without_the_object_is_refused(store):
    store.save(1, {"model": new_model()})
    model = new_model()
    with pytest.raises(cairn.NotFound, match="lacks 'optimizer.param_groups"):
        store.load({"model": model, "optimizer": torch.optim.AdamW(model.parameters())})


def test_a_pull_fills_a_new_optimizer(store):
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters())
    store.save(0, {"model": model, "optimizer": optimizer})
    train(model, optimizer, 0, 2)
    store.save(2, {"model": model, "optimizer": optimizer})

    other = new_model()
    new = torch.optim.AdamW(other.parameters())
    for since in (0, 2):
        store.pull({"model": other, "optimizer": new}, since=since)
        assert_same(new.state_dict(), optimizer.state_dict())


def test_an_imported_step_fills_a_new_optimizer(store, tmp_path):
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 0, 2)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    torch.save(state, tmp_path / "state.pt")
    for step, name in enumerate(["dcp", "state.pt"], 1):
        words = ["import", tmp_path / "imported", "--step", step, tmp_path / name]
        subprocess.run([PROGRAMS / "kv-admin", *map(str, words)], check=True, timeout=1200)

    for step in (1, 2):
        new = torch.optim.AdamW(new_model().parameters())
        with cairn.open(tmp_path / "imported") as imported:
            imported.load({"model": new_model(), "optimizer": new}, step)
        assert_same(new.state_dict(), optimizer.state_dict())


SHARDED = {name: OPTIMIZERS[name] for name in ("AdamW", "SGD with momentum", "Muon")}


def sharded_model() -> torch.nn.Module:
    model = new_model()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def save_sharded(rank: int, path: Any) -> None:
    with cairn.open(path, mode="a") as store:
        for number, make in enumerate(SHARDED.values()):
            model = sharded_model()
            optimizer = make(model)
            train(model, optimizer, 0, 2)
            store.save(number, {"model": model, "optimizer": optimizer})


def load_sharded(rank: int, path: Any) -> None:
    with cairn.open(path, mode="a") as store:
        for number, (name, make) in enumerate(SHARDED.items()):
            if name == "Muon" and store.world_size != 4:
                continue  # its products of matrices are sums in another order
            model, other = sharded_model(), sharded_model()
            optimizer, new = make(model), make(other)
            train(model, optimizer, 0, 2)
            store.load({"model": other, "optimizer": new}, number)
            assert_same(new.state_dict(), optimizer.state_dict())
            for one, of in ((model, optimizer), (other, new)):
                train(one, of, 2, 4)
            assert_same(dict(other.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("world_size", [4, 2])
def test_a_new_optimizer_of_another_number_of_ranks_continues(path, world_size):
    # All ranks train on the same data, so that two of them compute the same bits as four.
    run_on_ranks(save_sharded, path)
    run_on_ranks(load_sharded, path, world_size=world_size)


@with_ranks(2)
def test_a_rank_receives_nothing_that_only_others_have(rank, path):
    """Each rank has other keys of an object, as the stages of a pipeline do."""
    name = f"rank{rank}"
    with cairn.open(path, mode="a") as store:
        part = Stateful(**{name: {"values": [torch.full((2,), rank)] * rank, "step": 1}})
        store.save(1, {"part": part})
        new = Stateful(**{name: {"values": [], "step": 0}})
        store.load({"part": new})
        assert_same(new.state, part.state)
