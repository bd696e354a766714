"""The operations of the matrix. Each one takes a `Trial`, whose store has the steps 1 and 2, prepares
what it needs, states in `trial.after` and `trial.other_after` which steps there are afterwards, and
returns a function that performs it. This function is called again after a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from payloads import clear, flattened, mean

import cairn

if TYPE_CHECKING:
    from trial import Trial

Act = Callable[[], object]
OPERATIONS: dict[str, Callable[[Trial], Act]] = {}


def operation(make: Callable[[Trial], Act]) -> Callable[[Trial], Act]:
    OPERATIONS[make.__name__.replace("_", " ")] = make
    return make


# Saves ---------------------------------------------------------------------------------------


def _saving(name: str, **options: Any) -> None:
    def make(trial: Trial) -> Act:
        trial.after[3] = trial.host(2)
        return lambda: trial.store.save(3, trial.payload(2), **options)

    OPERATIONS[name] = make


_saving("save")
_saving("complete save", incremental=False)
_saving("save with deltas", deltas=True, device_delta_bytes=1 << 26)
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
    trial.after = {**trial.after, 3: trial.host(2), 4: trial.host(3)}

    def act() -> None:
        for step, version in ((3, 2), (4, 3)):
            trial.store.save_async(
                step, trial.payload(version), overwrite=True, deltas=True, device_delta_bytes=1 << 26
            ).result()

    return act


@operation
def save_with_statistics(trial: Trial) -> Act:
    trial.after[3] = trial.host(2)

    def act() -> None:
        trial.store.save(3, trial.payload(2), incremental=False, statistics=True)
        found = trial.store.statistics(3)
        for name, value in trial.host(2).items():
            if isinstance(value, torch.Tensor) and value.numel() and not value.is_complex():
                if name != "model.tied":
                    seen, values = found[name], value.double()
                    assert (seen.min, seen.max) == (values.min(), values.max()), name

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

    def act() -> None:
        with trial.store.writer(3) as writer:
            for name, value in trial.payload(2).items():
                writer.add(name, value)

    return act


# Changes of the set of steps -----------------------------------------------------------------


@operation
def delete(trial: Trial) -> Act:
    del trial.after[1]
    return trial.either(lambda: trial.store.delete(1), "kv-admin", "delete", "{store}", "1")


@operation
def prune(trial: Trial) -> Act:
    del trial.after[1]
    words = ("kv-admin", "prune", "{store}", "--keep-last", "1")
    return trial.either(lambda: trial.store.prune(keep_last=1), *words)


@operation
def compact(trial: Trial) -> Act:
    trial.store.delete(1)
    del trial.before[1], trial.after[1]
    return trial.rank0(
        lambda: trial.store.compact(max_dead=0, fold=True, compress=trial.cell.grace == "0"),
        "kv-admin", "compact", "{store}", "--max-dead", "0", "--fold",
    )  # fmt: skip


@operation
def merge(trial: Trial) -> Act:
    trial.after[3] = mean(trial.host(0), trial.host(1))
    words = ("kv-admin", "merge", "{store}@1,2", "--into", "3")
    return trial.rank0(lambda: trial.store.merge([1, 2], into=3), *words)


@operation
def rename(trial: Trial) -> Act:
    trial.after[3] = {
        name.replace("model.", "net."): value for name, value in trial.host(1).items()
    }
    words = ("kv-admin", "rename", "{store}@2", "model=net", "--into", "3")
    return trial.rank0(lambda: trial.store.edit(2, into=3, rename={"model": "net"}), *words)


@operation
def drop(trial: Trial) -> Act:
    kept = {name: value for name, value in trial.host(1).items() if name != "model.big"}
    trial.after[3] = kept
    words = ("kv-admin", "drop", "{store}@2", "model.big", "--into", "3")
    return trial.rank0(lambda: trial.store.edit(2, into=3, drop="model.big"), *words)


@operation
def graft(trial: Trial) -> Act:
    old = {name: value for name, value in trial.host(0).items() if name.startswith("model.")}
    trial.after[3] = {**trial.host(1), **{f"old.{name}": value for name, value in old.items()}}
    return trial.rank0(
        lambda: trial.store.edit(2, into=3, graft_from=1, graft="model", under="old"),
        "kv-admin", "graft", "{store}@2", "--from", "1", "model", "--under", "old", "--into", "3",
    )  # fmt: skip


@operation
def fork(trial: Trial) -> Act:
    trial.after[3] = trial.host(1)
    words = ("kv-admin", "fork", "{store}@2", "--into", "3")
    return trial.rank0(lambda: trial.store.fork(2, into=3), *words)


@operation
def tag(trial: Trial) -> Act:
    words = ("kv-admin", "tag", "{store}@2", "best")
    set_tag = trial.rank0(lambda: trial.store.tag(2, "best"), *words)

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
    words = ("kv-admin", "fork", "{store}@2", "--to", "{other}", "--into", "7")
    return trial.rank0(lambda: trial.store.fork(2, to=trial.other, into=7), *words)


@operation
def push(trial: Trial) -> Act:
    trial.other_after = dict(trial.after)
    return trial.rank0(
        lambda: trial.copy(trial.store, to_other=True), "kv-admin", "push", "{store}@1,2", "{other}"
    )


@operation
def pull_from_another_store(trial: Trial) -> Act:
    trial.on_rank0(lambda: trial.copy(trial.store, to_other=True))
    trial.other_before = trial.other_after = dict(trial.after)
    trial.store.delete(2)
    del trial.before[2]
    return trial.rank0(
        lambda: trial.copy(trial.store, to_other=False), "kv-admin", "pull", "{other}@2", "{store}"
    )


@operation
def mirror(trial: Trial) -> Act:
    trial.after[3] = trial.host(2)
    trial.other_after = {3: trial.host(2)}

    def act() -> None:
        trial.store.save(3, trial.payload(2), overwrite=True, mirror=trial.other)
        trial.on_rank0(lambda: trial.store.wait_mirrored(60))

    return act


@operation
def mirror_all(trial: Trial) -> Act:
    trial.other_after = dict(trial.after)
    return trial.rank0(
        lambda: trial.copy(trial.store, to_other=True), "kv-admin", "mirror", "{store}", "{other}"
    )


@operation
def repair(trial: Trial) -> Act:
    trial.on_rank0(lambda: trial.copy(trial.store, to_other=True))
    trial.other_before = trial.other_after = dict(trial.after)
    trial.on_rank0(trial.damage)
    return trial.program("kv-admin", "repair", "{store}", "--from", "{other}")


# Reads ---------------------------------------------------------------------------------------


def _reading(name: str, read: Callable[[cairn.Store], dict[str, Any]]) -> None:
    def make(trial: Trial) -> Act:
        return trial.reading(lambda: trial.compare(read(trial.store), trial.host(1)))

    OPERATIONS[name] = make


_reading("read", lambda store: store.read(step=2, flat=True))
_reading("map", lambda store: store.read(step=2, flat=True, mmap=True))


@operation
def lazy_map(trial: Trial) -> Act:
    def act() -> None:
        found = trial.store.read(step=2, flat=True, mmap=True, verify="lazy")
        assert trial.store.wait_verified(60)
        trial.compare(found, trial.host(1))

    return trial.reading(act)


@operation
def stream(trial: Trial) -> Act:
    def act() -> None:
        tensors = {k: v for k, v in trial.host(1).items() if isinstance(v, torch.Tensor)}
        trial.compare(dict(trial.store.stream(2)), tensors)

    return trial.reading(act)


@operation
def slices(trial: Trial) -> Act:
    def act() -> None:
        tensors = {k: v for k, v in trial.host(1).items() if isinstance(v, torch.Tensor)}
        boxes = {k: [(n // 3, n - n // 4) for n in v.shape] for k, v in tensors.items()}
        parts = {
            name: tensors[name][tuple(slice(*ends) for ends in box)] for name, box in boxes.items()
        }
        trial.compare(trial.store.read_slices(boxes, step=2), parts)
        for name, box in boxes.items():
            trial.compare({name: trial.store.read_slice(name, box, step=2)}, {name: parts[name]})

    return trial.reading(act)


def _loading(name: str, **options: Any) -> None:
    def make(trial: Trial) -> Act:
        def act() -> None:
            state = trial.payload(0)
            clear(flattened(state))
            trial.store.load(state, step=2, **options)
            trial.compare_kind(flattened(state), trial.host(1))

        return trial.reading(act, together=True)

    OPERATIONS[name] = make


_loading("load")
_loading("read once", read_once=True)


@operation
def pull_into_a_live_model(trial: Trial) -> Act:
    def act() -> None:
        state = trial.payload(0)
        trial.store.pull(state, since=1, step=2)
        trial.compare_kind(flattened(state), trial.host(1))

    return trial.reading(act, together=True)


@operation
def diff(trial: Trial) -> Act:
    old, new = trial.host(0), trial.host(1)
    changed = {name for name in new if trial.differs(old[name], new[name])}

    def act() -> None:
        found = trial.store.diff(1, 2)
        assert set(found.changed) == changed, (found.changed, changed)

    words = ("kv-dump", "diff", "{store}@1", "{store}@2")
    return trial.rank0(act, *words, status=1 if changed else 0)


@operation
def verify(trial: Trial) -> Act:
    return trial.rank0(lambda: trial.scrub(trial.store), "kv-dump", "verify", "{store}")


@operation
def report(trial: Trial) -> Act:
    return trial.program("kv-dump", "report", "{store}", "-o", "{folder}/report.html")
