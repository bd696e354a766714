"""Loads in place, which the ranks of a store make together: which step they load, which keys no
rank has, and which rank needs what. All functions are collective.

Ranks may hold different keys, as stages of a pipeline do. A key of the step is unexpected if no
rank has it. Where one rank reads for others, it forwards a replicated tensor to the ranks that have
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.patterns import all_patterns
from cairn._load.contents import check_match, damaged_keys
from cairn._load.load import Load, LoadOptions, Source
from cairn._load.object_states import ObjectStates, takes_contents
from cairn._opened.continued import LoadedStep, note_loaded
from cairn._opened.opened import Opened
from cairn._opened.tiers import Location, Tiers, agree_on_step
from cairn._ranks.ranks import Ranks
from cairn._tensors.stateful import StatefulAdapter
from cairn.errors import Invalid, NotFound

if TYPE_CHECKING:
    from cairn.reports import LoadReport

Place = tuple[_cairn.Store, int | None]
"""A store, and the step in it."""


def load(opened: Opened, state: Any, step: int | str | None, options: LoadOptions) -> LoadReport:
    """See `Store.load`."""
    number = opened.number(step)
    opened.ranks.begin("load")
    place = locate(opened, number, opened.tiers)
    report = load_from(opened, place, state, options)
    opened.ranks.warn()
    return report


def locate(opened: Opened, step: int | None, tiers: Tiers) -> Place:
    """The one of the stores that has the step, and the step. If none has it, this store, which
    raises NotFound."""
    if not tiers.others:
        return opened.native, own_step(opened, step)
    found = agree_on_step(opened.ranks, step, lambda: tiers.find(step))
    if found is None:
        return opened.native, step
    tier, number = Location(*found)
    return tiers.open_together(tier, opened.ranks.communicator), number


def own_step(opened: Opened, step: int | None) -> int | None:
    """The step to load of this store: `step`, or the latest one that rank 0 sees. Collective.
    Raises Invalid if the ranks name different steps, NotFound if the store has none."""
    if opened.ranks.world_size == 1:
        return step

    def find() -> int:
        found = opened.native.latest() if step is None else step
        # If there are no steps, `contents` raises NotFound.
        return opened.native.contents(None, []).step if found is None else found

    return agree_on_step(opened.ranks, step, find)


def load_from(opened: Opened, place: Place, state: Any, options: LoadOptions) -> LoadReport:
    """Loads the step at `place`."""

    def plan(state: Any, source: Source) -> Load:
        return Load(place[0], state, source, opened.ranks)

    return run_load(opened, place, plan, state, options)


def run_load(
    opened: Opened,
    place: Place,
    plan: Callable[[Any, Source], Load],
    state: Any,
    options: LoadOptions,
    is_update: bool = False,
) -> Any:
    """Runs the load that ``plan`` makes of the adapted state and what is read for it. The next save
    to the opened store continues from the step, which may be in another store. `is_update`: for a
    pull, which compares what the state has.

    Raises on all ranks what one of them raises, and Invalid for unexpected keys if the load is
    strict.
    """
    ranks = opened.ranks

    def plan_local() -> tuple[tuple[StatefulAdapter, Source, ObjectStates | Load], Any]:
        adapter = options.adapt(state)
        source = read_source(adapter, place, options)
        if takes_contents(adapter):
            states = ObjectStates(adapter, *source)
            return (adapter, source, states), (states.lacking, False, True)
        load = plan(adapter.state, source)
        return (adapter, source, load), (*_described(load), False)

    (adapter, source, load), replies = ranks.run_and_exchange(plan_local)
    if any(reply[-1] for reply in replies):

        def plan_objects() -> tuple[Load, Any]:
            made = load
            if isinstance(made, ObjectStates):
                made.apply([reply[0] for reply in replies])
                if is_update and made.new_tensors.has_memory:
                    raise Invalid(
                        "an object of the state lacks arrays, or tensors in device memory, which "
                        "an update cannot compare with the earlier step: load the step first"
                    )
                made = plan(adapter.state, source)
            return made, (*_described(made), False)

        load, replies = ranks.run_and_exchange(plan_objects)
    assert isinstance(load, Load)
    _check_match(replies, load.info.step)
    if ranks.world_size > 1:
        unexpected_on_all = set(load.unexpected).intersection(*(reply[0] for reply in replies))
        load.unexpected = tuple(fqn for fqn in load.unexpected if fqn in unexpected_on_all)
    load.check_unexpected()
    if load.read_once and ranks.world_size > 1:
        _set_holders(ranks, load.requests)
        have_devices = any(reply[1] for reply in replies)
        load.by_nccl = ranks.over_nccl(load.requests.devices(), have_devices, options.device)
    report = ranks.run_together(load.run)
    # An object's load_state_dict may fail on one rank only.
    ranks.run_together(adapter.load_into_objects)
    opened.native.continue_from(load.info)
    opened.loaded = LoadedStep(load.info, is_own=place[0] is opened.native)
    if opened.mode == "r":
        note_loaded(opened.native, load.info, is_own=opened.loaded.is_own)
    return report


def _described(load: Load) -> tuple[Sequence[str], bool, bool, tuple[str, str | None] | None]:
    """What the other ranks have to know of a load: what is unexpected, whether it has tensors on
    devices, whether it loads anything, and the error if no rank does."""
    error = load.unmatched
    text = None if error is None else (str(error), error.key)
    return load.unexpected, bool(load.requests.devices()), load.match_count > 0, text


def _check_match(replies: list[Any], step: int) -> None:
    """Raises NotFound, on all ranks, if a load that is not strict loads nothing on any rank."""
    errors = [error for *_, error, _ in replies if error is not None]
    if errors and not any(matches for _, _, matches, *_ in replies):
        text, key = errors[0]
        raise NotFound(text, key=key, step=step)


def read_source(adapter: StatefulAdapter, place: Place, options: LoadOptions) -> Source:
    """Reads the records that a load needs. Raises NotFound if the patterns match no key."""
    frozen = adapter.frozen
    if options.strip_wrappers:
        frozen = [_cairn.without_wrappers(fqn) for fqn in frozen]
    has_patterns = bool(options.patterns or options.prefix)
    patterns = all_patterns(list(options.patterns), options.prefix, frozen)
    options = options._replace(patterns=patterns)
    native, step = place
    contents = native.contents(step, [] if options.conversion else options.selected)
    if options.conversion is not None:
        contents = _convert(adapter.state, contents, options)
    if has_patterns:
        check_match(options.selected, native, contents)
        if options.strip_wrappers and not options.plan(contents, {}).unexpected():
            from cairn._load.key_errors import no_match

            raise no_match(patterns, contents)
    skipped = damaged_keys(native, contents) if options.skip_damaged else {}
    return Source(contents, options, skipped)


def _convert(state: Any, stored: _cairn.Contents, options: LoadOptions) -> _cairn.Contents:
    """What the step contains after the conversion, and after the casts to dtypes of `state`."""
    conversion = options.conversion
    assert conversion is not None
    contents = conversion.convert(stored, options.selected)
    if not conversion.cast:
        return contents
    from cairn._load.conversions import other_dtypes

    casts = other_dtypes(options.plan(contents, state), contents)
    return conversion.convert(stored, options.selected, casts) if casts else contents


def _set_holders(ranks: Ranks, requests: _cairn.Requests) -> None:
    """Sets the ranks that need a replicated tensor, where not all ranks do."""
    local_fqns = sorted(requests.whole_fqns())
    replies = ranks.exchange_values(lambda: local_fqns)
    if all(fqns == local_fqns for fqns in replies):
        return
    holders: dict[str, list[int]] = {}
    for rank, fqns in enumerate(replies):
        for fqn in fqns:
            holders.setdefault(fqn, []).append(rank)
    meshes: dict[tuple[int, ...], _cairn.Mesh] = {}
    for fqn in local_fqns:
        members = tuple(holders[fqn])
        if len(members) < ranks.world_size:
            if members not in meshes:
                meshes[members] = _cairn.Mesh((len(members),), members)
            requests.set_holders(fqn, meshes[members])
