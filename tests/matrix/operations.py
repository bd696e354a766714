"""The operations of the matrix. Each takes a `Trial`, whose store has the steps 1 and 2, prepares
what it needs, states in `after` and `other_after` which steps there are afterwards, and returns a
function that performs it. This function is called again after a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from payloads import clear, differ, flattened, mean

import cairn

if TYPE_CHECKING:
    from trial import Trial

Act = Callable[[], object]
Flat = dict[str, Any]
OPERATIONS: dict[str, Callable[[Trial], Act]] = {}


def operation(make: Callable[[Trial], Act]) -> Callable[[Trial], Act]:
    OPERATIONS[make.__name__.replace("_", " ")] = make
    return make


# Saves of step 3 -----------------------------------------------------------------------------


def _saving(name: str, **options: Any) -> None:
    def make(trial: Trial) -> Act:
        trial.after[3] = trial.host(2)
        return lambda: trial.store.save(3, trial.payload(2), **options)

    OPERATIONS[name] = make


_saving("save")
_saving("complete save", incremental=False)
_saving("save with deltas", deltas=True)
_saving("compressed save", compress=True)
_saving("save with shared chunks", share_equal=True)


@operation
def save_async(trial: Trial) -> Act:
    trial.after[3] = trial.host(2)

    def act() -> None:
        state = trial.payload(2)
        handle = trial.store.save_async(3, state)
        handle.wait_staged()
        clear(flattened(state))
        handle.result()

    return act


@operation
def save_async_with_deltas(trial: Trial) -> Act:
    trial.after |= {3: trial.host(2), 4: trial.host(3)}
    options = {"overwrite": True, "deltas": True}

    def act() -> None:
        for step in (3, 4):
            trial.store.save_async(step, trial.payload(step - 1), **options).result()

    return act


@operation
def save_with_statistics(trial: Trial) -> Act:
    trial.after[3] = trial.host(2)

    def act() -> None:
        trial.store.save(3, trial.payload(2), incremental=False, statistics=True)
        found = trial.store.statistics(3)
        for name, value in _tensors(trial.host(2)).items():
            if value.numel() and not value.is_complex() and name != "model.tied":
                values = value.double()
                assert (found[name].min, found[name].max) == (values.min(), values.max()), name

    return act


@operation
def save_with_unchanged(trial: Trial) -> Act:
    old = {name: value for name, value in trial.host(1).items() if name.startswith("model.")}
    trial.after[3] = {**trial.host(2), **old}
    return lambda: trial.store.save(3, trial.state_of(trial.after[3]), unchanged="model")


@operation
def overwrite(trial: Trial) -> Act:
    trial.after[2] = trial.host(2)
    return lambda: trial.store.save(2, trial.payload(2), overwrite=True)


@operation
def streamed_save(trial: Trial) -> Act:
    trial.after[3] = trial.host(2)
    return lambda: trial.stream(3, 2)


# Deletions, and steps made of others, by Python or by a program --------------------------------


@operation
def delete(trial: Trial) -> Act:
    del trial.after[1]
    return trial.either(lambda: trial.store.delete(1), "kv-admin delete {store} 1")


@operation
def prune(trial: Trial) -> Act:
    del trial.after[1]
    words = "kv-admin prune {store} --keep-last 1"
    return trial.either(lambda: trial.store.prune(keep_last=1), words)


@operation
def compact(trial: Trial) -> Act:
    trial.store.delete(1)
    del trial.before[1], trial.after[1]
    options = {"max_dead": 0, "fold": True, "compress": trial.cell.grace == "0"}
    words = "kv-admin compact {store} --max-dead 0 --fold"
    return trial.rank0(lambda: trial.store.compact(**options), words)


def _deriving(
    name: str, expected: Callable[[Flat, Flat], Flat], derive: Callable[[cairn.Store], Any],
    words: str,
) -> None:  # fmt: skip
    """Step 3 is made of the steps 1 and 2."""

    def make(trial: Trial) -> Act:
        trial.after[3] = expected(trial.host(0), trial.host(1))
        return trial.rank0(lambda: derive(trial.store), f"kv-admin {words} --into 3")

    OPERATIONS[name] = make


_deriving("merge", mean, lambda store: store.merge([1, 2], into=3), "merge {store}@1,2")
_deriving("fork", lambda _, new: new, lambda store: store.fork(2, into=3), "fork {store}@2")
_deriving(
    "rename",
    lambda _, new: {name.replace("model.", "net."): value for name, value in new.items()},
    lambda store: store.edit(2, into=3, rename={"model": "net"}),
    "rename {store}@2 model=net",
)
_deriving(
    "drop",
    lambda _, new: {name: value for name, value in new.items() if name != "model.big"},
    lambda store: store.edit(2, into=3, drop="model.big"),
    "drop {store}@2 model.big",
)
_deriving(
    "graft",
    lambda old, new: {**new, **{f"old.{k}": v for k, v in old.items() if k.startswith("model.")}},
    lambda store: store.edit(2, into=3, graft_from=1, graft="model", under="old"),
    "graft {store}@2 --from 1 model --under old",
)


@operation
def tag(trial: Trial) -> Act:
    set_tag = trial.rank0(lambda: trial.store.tag(2, "best"), "kv-admin tag {store}@2 best")

    def act() -> None:
        set_tag()
        if trial.rank == 0:
            assert trial.store.tags() == {"best": 2}
            trial.compare(trial.store.read(step="best", flat=True), trial.host(1))

    return act


# Copies --------------------------------------------------------------------------------------


@operation
def fork_to_another_store(trial: Trial) -> Act:
    trial.other_after = {7: trial.host(1)}
    words = "kv-admin fork {store}@2 --to {other} --into 7"
    return trial.rank0(lambda: trial.store.fork(2, to=trial.other, into=7), words)


@operation
def push(trial: Trial) -> Act:
    trial.other_after = dict(trial.after)
    return trial.rank0(trial.copy_to_other, "kv-admin push {store}@1,2 {other}")


@operation
def pull_from_another_store(trial: Trial) -> Act:
    trial.on_rank0(trial.copy_to_other)
    trial.other_before = trial.other_after = dict(trial.after)
    trial.store.delete(2)
    del trial.before[2]
    return trial.rank0(trial.copy_from_other, "kv-admin pull {other}@2 {store}")


@operation
def mirror(trial: Trial) -> Act:
    trial.after[3] = trial.host(2)
    trial.other_after = {3: trial.host(2)}

    def act() -> None:
        trial.store.save(3, trial.payload(2), overwrite=True, mirror=trial.other)
        trial.on_rank0(lambda: trial.store.wait_mirrored(240))

    return act


@operation
def mirror_all(trial: Trial) -> Act:
    trial.other_after = dict(trial.after)
    return trial.rank0(trial.copy_to_other, "kv-admin mirror {store} {other}")


@operation
def repair(trial: Trial) -> Act:
    trial.on_rank0(trial.copy_to_other)
    trial.other_before = trial.other_after = dict(trial.after)
    trial.on_rank0(trial.damage)
    return trial.program("kv-admin repair {store} --from {other}")


# Reads of step 2 -----------------------------------------------------------------------------


def _tensors(flat: Flat) -> dict[str, torch.Tensor]:
    return {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}


def _reading(name: str, read: Callable[[cairn.Store], Flat], expected: Any = dict) -> None:
    def make(trial: Trial) -> Act:
        return trial.reading(lambda: trial.compare(read(trial.store), expected(trial.host(1))))

    OPERATIONS[name] = make


def _read_lazily(store: cairn.Store) -> Flat:
    found = store.read(step=2, flat=True, mmap=True, verify="lazy")
    assert store.wait_verified(240)
    return found


_reading("read", lambda store: store.read(step=2, flat=True))
_reading("map", lambda store: store.read(step=2, flat=True, mmap=True))
_reading("lazy map", _read_lazily)
_reading("stream", lambda store: dict(store.stream(2)), _tensors)


@operation
def slices(trial: Trial) -> Act:
    tensors = _tensors(trial.host(1))
    boxes = {k: [(n // 3, n - n // 4) for n in v.shape] for k, v in tensors.items()}
    parts = {k: tensors[k][tuple(slice(*ends) for ends in box)] for k, box in boxes.items()}

    def act() -> None:
        trial.compare(trial.store.read_slices(boxes, step=2), parts)
        for name, box in boxes.items():
            trial.compare({name: trial.store.read_slice(name, box, step=2)}, {name: parts[name]})

    return trial.reading(act)


def _loading(name: str, load: Callable[[cairn.Store, Flat], Any]) -> None:
    """All ranks fill the state of step 1."""

    def make(trial: Trial) -> Act:
        def act() -> None:
            state = trial.payload(0)
            load(trial.store, state)
            trial.compare(flattened(state), trial.part_of(trial.host(1)))

        return trial.reading(act, together=True)

    OPERATIONS[name] = make


_loading("load", lambda store, state: store.load(state, step=2))
_loading("read once", lambda store, state: store.load(state, step=2, read_once=True))
_loading("pull into a live model", lambda store, state: store.pull(state, since=1, step=2))


@operation
def diff(trial: Trial) -> Act:
    old, new = trial.host(0), trial.host(1)
    changed = {name for name in new if differ(old[name], new[name])}

    def act() -> None:
        assert set(trial.store.diff(1, 2).changed) == changed

    return trial.rank0(act, "kv-dump diff {store}@1 {store}@2", status=1 if changed else 0)


@operation
def verify(trial: Trial) -> Act:
    return trial.rank0(lambda: trial.scrub(trial.store), "kv-dump verify {store}")


@operation
def report(trial: Trial) -> Act:
    return trial.program("kv-dump report {store} -o {folder}/report.html")
