"""The operations of the matrix, on a `Trial` whose store has the steps 1 and 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from payloads import Flat, clear, differ, flattened, mean

import cairn

if TYPE_CHECKING:
    from trial import Trial

Act = Callable[["Trial"], object]
Steps = dict[int, "int | Callable[[Callable[[int], Flat]], Flat]"]
"""Versions of steps, or functions that make a flat state of versions."""


class Operation(NamedTuple):
    act: Act | None
    """Performs the operation, again if there was a fault. None: only a program performs it."""
    adds: Steps = {}
    """The steps that the operation adds or overwrites."""
    program: str = ""
    """What a program does instead. Rank 0 alone calls `act` then, unless `all_ranks`."""
    all_ranks: bool = False
    removes: tuple[int, ...] = ()
    other: Steps = {}
    """The steps of the other store afterwards."""
    prepare: Act = lambda trial: None
    tags: dict[str, int] = {}


_STEP_3: Steps = {3: 2}
_BOTH: Steps = {1: 0, 2: 1}
_DELTAS = {"tuning": cairn.SaveTuning(deltas=True)}


def _tensors(flat: Flat) -> dict[str, torch.Tensor]:
    return {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}


def _model(flat: Flat) -> Flat:
    return {name: value for name, value in flat.items() if name.startswith("model.")}


def _save(**options: Any) -> Act:
    return lambda trial: trial.store.save(3, trial.payload(2), **options)


def _save_async(trial: Trial) -> None:
    state = trial.payload(2)
    handle = trial.store.save_async(3, state)
    handle.wait_staged()
    clear(flattened(state))
    handle.result()


def _save_async_with_deltas(trial: Trial) -> None:
    for step in (3, 4):
        state = trial.payload(step - 1)
        trial.store.save_async(step, state, overwrite=True, **_DELTAS).result()


def _save_with_statistics(trial: Trial) -> None:
    trial.store.save(3, trial.payload(2),
        tuning=cairn.SaveTuning(incremental=False, statistics=True))
    found = trial.store.statistics(3)
    for name, value in _tensors(trial.host(2)).items():
        if value.numel() and not value.is_complex() and name != "model.tied":
            values = value.double()
            assert (found[name].min, found[name].max) == (values.min(), values.max()), name


def _delete(trial: Trial, step: int) -> None:
    trial.store.delete(step)
    del trial.before[step]


def _compact(trial: Trial) -> None:
    trial.store.compact(max_dead=0, fold=True, compress=trial.cell.grace == "0")


def _copy(trial: Trial) -> None:
    with cairn.open(trial.other, "a", alone=True) as other:
        cairn.copy_steps(trial.store, other)


def _copy_back(trial: Trial) -> None:
    with cairn.open(trial.other, alone=True) as other:
        cairn.copy_steps(other, trial.store)


def _prepare_copy(change: Act) -> Act:
    """The other store has both steps; then this store is changed."""

    def prepare(trial: Trial) -> None:
        trial.on_rank0(lambda: _copy(trial))
        trial.other_before = dict(trial.before)
        change(trial)

    return prepare


def _mirror(trial: Trial) -> None:
    trial.store.save(3, trial.payload(2), overwrite=True, mirror=trial.other)
    trial.on_rank0(lambda: trial.store.wait_mirrored(240))


def _read(read: Callable[[cairn.Store], Flat], expected: Callable[[Flat], Flat] = dict) -> Act:
    """Rank 0 reads step 2."""

    def act(trial: Trial) -> None:
        trial.open_to_read()
        trial.on_rank0(lambda: trial.compare(read(trial.store), expected(trial.host(1))))

    return act


def _read_lazily(store: cairn.Store) -> Flat:
    found = store.read(step=2, flat=True, mmap=True, verify="lazy")
    assert store.wait_verified(240)
    return found


def _read_slices(trial: Trial) -> None:
    tensors = _tensors(trial.host(1))
    boxes = {k: [(n // 3, n - n // 4) for n in v.shape] for k, v in tensors.items()}
    parts = {k: tensors[k][tuple(slice(*ends) for ends in box)] for k, box in boxes.items()}

    def read_each(store: cairn.Store) -> Flat:
        return {k: store.read_slice(k, box, step=2) for k, box in boxes.items()}

    for read in (lambda store: store.read_slices(boxes, step=2), read_each):
        _read(read, lambda _: parts)(trial)


def _load(load: Callable[[cairn.Store, Flat], object]) -> Act:
    """All ranks fill the state of step 1 with step 2."""

    def act(trial: Trial) -> None:
        trial.open_to_read()
        state = trial.payload(0)
        load(trial.store, state)
        trial.compare(flattened(state), trial.part_of(trial.host(1)))

    return act


def _changed(trial: Trial) -> set[str]:
    old, new = trial.host(0), trial.host(1)
    return {name for name in new if differ(old[name], new[name])}


def _check(trial: Trial) -> None:
    trial.open_to_read()
    assert trial.store.check(trial.payload(1), step=2).equal
    assert set(trial.store.check(trial.payload(0), step=2).different) == _changed(trial)


def _check_state(trial: Trial) -> None:
    report = trial.store.check_state(trial.payload(2))
    assert not report.refused and not report.differing


def _diff(trial: Trial) -> None:
    changed = _changed(trial)
    if trial.cell.by == "program":
        trial.program("kv-dump diff {store}@1 {store}@2", status=1 if changed else 0)
    else:
        assert trial.on_rank0(lambda: set(trial.store.diff(1, 2).changed) == changed)


OPERATIONS = {
    "save": Operation(_save(), _STEP_3),
    "complete save": Operation(_save(tuning=cairn.SaveTuning(incremental=False)), _STEP_3),
    "save with deltas": Operation(_save(**_DELTAS), _STEP_3),
    "compressed save": Operation(_save(tuning=cairn.SaveTuning(compress=True)), _STEP_3),
    "save with shared chunks": Operation(_save(tuning=cairn.SaveTuning(share_equal=True)), _STEP_3),
    "save async": Operation(_save_async, _STEP_3),
    "save async with deltas": Operation(_save_async_with_deltas, {3: 2, 4: 3}),
    "save with statistics": Operation(_save_with_statistics, _STEP_3),
    "save with unchanged": Operation(
        lambda trial: trial.store.save(3, trial.state_of(trial.after[3]),
            tuning=cairn.SaveTuning(unchanged="model")),
        {3: lambda host: host(2) | _model(host(1))},
    ),
    "overwrite": Operation(
        lambda trial: trial.store.save(2, trial.payload(2), overwrite=True), {2: 2}
    ),
    "streamed save": Operation(lambda trial: trial.stream(3, 2), _STEP_3),
    "delete": Operation(
        lambda trial: trial.store.delete(1), program="kv-admin delete {store} 1",
        removes=(1,), all_ranks=True,
    ),  # fmt: skip
    "prune": Operation(
        lambda trial: trial.store.prune(keep_last=1),
        program="kv-admin prune {store} --keep-last 1", removes=(1,), all_ranks=True,
    ),  # fmt: skip
    "compact": Operation(
        _compact, program="kv-admin compact {store} --max-dead 0 --fold",
        prepare=lambda trial: _delete(trial, 1),
    ),  # fmt: skip
    "merge": Operation(
        lambda trial: trial.store.merge([1, 2], into=3),
        {3: lambda host: mean(host(0), host(1))},
        "kv-admin merge {store}@1,2 --into 3",
    ),
    "fork": Operation(
        lambda trial: trial.store.fork(2, into=3), {3: 1}, "kv-admin fork {store}@2 --into 3"
    ),
    "rename": Operation(
        lambda trial: trial.store.edit(2, into=3, rename={"model": "net"}),
        {3: lambda host: {k.replace("model.", "net."): v for k, v in host(1).items()}},
        "kv-admin rename {store}@2 model=net --into 3",
    ),
    "drop": Operation(
        lambda trial: trial.store.edit(2, into=3, drop="model.big"),
        {3: lambda host: {k: v for k, v in host(1).items() if k != "model.big"}},
        "kv-admin drop {store}@2 model.big --into 3",
    ),
    "graft": Operation(
        lambda trial: trial.store.edit(2, into=3, graft_from=1, graft="model", under="old"),
        {3: lambda host: host(1) | {f"old.{k}": v for k, v in _model(host(0)).items()}},
        "kv-admin graft {store}@2 --from 1 model --under old --into 3",
    ),
    "tag": Operation(
        lambda trial: trial.store.tag(2, "best"), program="kv-admin tag {store}@2 best",
        tags={"best": 2},
    ),  # fmt: skip
    "fork to another store": Operation(
        lambda trial: trial.store.fork(2, to=trial.other, into=7),
        program="kv-admin fork {store}@2 --to {other} --into 7", other={7: 1},
    ),  # fmt: skip
    "push": Operation(_copy, program="kv-admin push {store}@1,2 {other}", other=_BOTH),
    "pull from another store": Operation(
        _copy_back, {2: 1}, "kv-admin pull {other}@2 {store}", other=_BOTH,
        prepare=_prepare_copy(lambda trial: _delete(trial, 2)),
    ),  # fmt: skip
    "mirror": Operation(_mirror, _STEP_3, other=_STEP_3),
    "mirror all": Operation(_copy, program="kv-admin mirror {store} {other}", other=_BOTH),
    "repair": Operation(
        None, program="kv-admin repair {store} --from {other}", other=_BOTH,
        prepare=_prepare_copy(lambda trial: trial.damage()),
    ),  # fmt: skip
    "read": Operation(_read(lambda store: store.read(step=2, flat=True))),
    "map": Operation(_read(lambda store: store.read(step=2, flat=True, mmap=True))),
    "lazy map": Operation(_read(_read_lazily)),
    "stream": Operation(_read(lambda store: dict(store.stream(2)), _tensors)),
    "slices": Operation(_read_slices),
    "load": Operation(_load(lambda store, state: store.load(state, step=2))),
    "read once": Operation(_load(lambda store, state: store.load(state, step=2, read_once=True))),
    "pull into a live model": Operation(
        _load(lambda store, state: store.pull(state, since=1, step=2))
    ),
    "check": Operation(_check),
    "check state": Operation(_check_state),
    "diff": Operation(_diff),
    "log": Operation(None, program="kv-dump log {store}"),
    "fingerprint": Operation(None, program="kv-dump fingerprint {store}@2"),
    "later statistics": Operation(None, program="kv-admin statistics {store}@2"),
    "verify": Operation(lambda trial: trial.scrub(trial.store), program="kv-dump verify {store}"),
    "report": Operation(None, program="kv-dump report {store} -o {folder}/report.html"),
}
