"""`resume` and `save`: a training loop in three lines, without a `Saver`."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from cairn._base.addresses import step_number
from cairn._tensors.stateful import is_stateful
from cairn.errors import Invalid
from cairn.reports import SaveReport
from cairn.store import SaveHandle, Store
from cairn.torch._rank_parts import DataloaderState, RandomGenerators, RankPart
from cairn.torch._resume import Resume, ResumeOptions, check_store


class Start(int):
    """The number of the first step that a training still has to do.

    Attributes:
        step: the step that was loaded; None: the store has none.
    """

    step: int | None

    def __new__(cls, step: int | None) -> Start:
        made = super().__new__(cls, 0 if step is None else step + 1)
        made.step = None if step is None else int(step)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Start, (self.step,)


def resume(
    store: Store,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    dataloader: Any = None,
    rng: bool = False,
    more: MutableMapping[str, Any] | None = None,
    step: int | str | None = None,
    base: int | str | None = None,
    strict: bool = True,
) -> Start:
    """Loads what :func:`save` has saved, and returns the number of the first step to do.

        start = cairn.torch.resume(store, model=model, optimizer=optimizer, rng=True)
        for step in range(start, 10_000):
            train_one_step()
            cairn.torch.save(store, step, model=model, optimizer=optimizer, rng=True)

    A training that continues in this way computes the same bits as one that was not interrupted, on
    any number of ranks that computes the same sums. Collective, as :meth:`Store.load`.

    Args:
        model, optimizer, scheduler, scaler: an object with ``state_dict`` and ``load_state_dict``,
            or a list of such objects; None: it is neither saved nor loaded. Names of parameters
            match without those of wrappers, as with ``strip_wrappers=True``.
        dataloader: as for :class:`Saver`. Each rank has its own state.
        rng: the random generators of Python, numpy and torch of each rank, which are set after all
            else. A rank that the step does not know keeps its own, with a warning. A
            ``StatefulDataLoader`` has created its iterator by then, for which it draws from them;
            another dataloader must not draw from them when an iteration begins.
        more: other objects or states, by their keys in the step. Values are replaced in it.
        step: number or tag of the step to load; by default the latest of the run.
        base: number or tag of the step that the run starts from, such as an imported model, which
            is not resumed from.
        strict: as for :meth:`Store.load`. Leaving out what the step contains is refused. With
            ``False``, what the step lacks remains as it is, with a warning for ``dataloader`` and
            ``rng``.

    Returns:
        :class:`Start`, an ``int``: 0 if the store has no step, with nothing changed.

    Raises:
        Invalid: ``store`` is not an open store, or an object has no ``state_dict`` and
            ``load_state_dict``; otherwise as :meth:`Saver.resume`, which can also skip damaged
            steps.
    """
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    state, parts = _state_of(store, named, dataloader, rng, more)
    number = store.opened.number(base)
    function = "cairn.torch.resume"
    options = ResumeOptions(strict, "raise", (), parts, number, True, takes_base=function)
    resuming = Resume(store, state, options)
    found = resuming.run(store.opened.number(step))
    for key in () if found is None else more or ():
        more[key] = state[key]
    resuming.warn()  # last, because a filter may turn a warning into an exception
    return Start(found)


def save(
    store: Store,
    step: int,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    dataloader: Any = None,
    rng: bool = False,
    more: Mapping[str, Any] | None = None,
    async_: bool = False,
    **options: Any,
) -> SaveReport | SaveHandle:
    """Saves what :func:`resume` loads, with the same names, as step ``step``, which is done.

    Args:
        async_: returns the handle of :meth:`Store.save_async`, which continues in the background.
        options: those of :meth:`Store.save`, such as ``tags``, ``metrics`` and ``overwrite``.

    Raises:
        Invalid: ``store`` is not an open store, or an object has no ``state_dict`` and
            ``load_state_dict``; otherwise as :meth:`Store.save`.
    """
    step_number(step)
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    state, parts = _state_of(store, named, dataloader, rng, more)
    for part in parts:
        state = part.add_to(state)
    return (store.save_async if async_ else store.save)(step, state, **options)


def _state_of(
    store: Store, named: dict[str, Any], dataloader: Any, rng: bool, more: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[RankPart]]:
    check_store(store)
    state: dict[str, Any] = {}
    for name, value in named.items():
        if isinstance(value, (list, tuple)):
            state.update((f"{name}.{i}", one) for i, one in enumerate(value))
        elif value is not None:
            state[name] = value
    for name, value in state.items():
        if not is_stateful(value):
            raise Invalid(
                f"{name}={type(value).__name__}: an object with state_dict and load_state_dict is "
                "needed, or a list of them; pass other states in more=",
                key=name,
            )
    parts: list[RankPart] = []
    if dataloader is not None:
        parts.append(DataloaderState(dataloader, store.rank, store.world_size))
    if rng:
        parts.append(RandomGenerators(store.rank, store.world_size))
    reserved = {*named, *(part.key for part in parts)}
    if both := sorted(reserved & set(more or ())):
        raise Invalid(f"more= has the key '{both[0]}': pass it as {both[0]}=", key=both[0])
    return {**state, **(more or {})}, parts
