"""Loads in place, which the ranks of a store make together: which step they load, which keys no
rank has, and which rank needs what. All functions are collective.

Ranks may hold different keys, as stages of a pipeline do. A key of the step is unexpected if no
rank has it. Where one rank reads for others, it forwards a replicated tensor to the ranks that have
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.patterns import all_patterns
from cairn._base.steps import step_number
from cairn._load.contents import check_match
from cairn._load.damage import without_damage
from cairn._load.load import Load, LoadOptions
from cairn._opened.opened import Opened
from cairn._opened.tiers import Tiers, locate_together
from cairn._ranks.ranks import Ranks
from cairn._tensors.stateful import StatefulAdapter
from cairn.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from cairn._load.conversions import ConversionOptions
    from cairn.reports import LoadReport

Place = tuple[_cairn.Store, int | None]
"""A store, and the step in it."""


def load(
    opened: Opened,
    state: Any,
    step: int | str | None,
    options: LoadOptions,
    prefix: str,
    ignore_frozen: bool,
) -> LoadReport:
    """See `Store.load`."""
    place = locate(opened, opened.number(step), opened.tiers)
    report = load_from(opened.ranks, place, state, options, prefix, ignore_frozen)
    opened.ranks.warn()
    return report


def locate(opened: Opened, step: int | None, tiers: Tiers | None) -> Place:
    """The one of the stores that has the step, and the step. If none has it, this store, which
    raises NotFound. Without tiers, this store."""
    if tiers is None:
        return opened.native, agree_on_step(opened.ranks, opened.native, step)
    found = locate_together(opened.ranks, tiers, step)
    if found is None:
        return opened.native, step
    return tiers.open_together(found.tier, opened.ranks.communicator), found.step


def load_from(
    ranks: Ranks,
    place: Place,
    state: Any,
    options: LoadOptions,
    prefix: str = "",
    ignore_frozen: bool = False,
) -> LoadReport:
    """Loads the step at `place`."""
    adapters: list[StatefulAdapter] = []

    def plan() -> Load:
        adapters.append(StatefulAdapter(state, prefix, ignore_frozen))
        return _plan(ranks, adapters[0], place, options, prefix)

    load = plan_together(ranks, plan, options.device)
    report = ranks.run_together(load.run)
    # An object's load_state_dict may fail on one rank only.
    ranks.run_together(adapters[0].load_into_objects)
    return report


def _plan(
    ranks: Ranks, adapter: StatefulAdapter, place: Place, options: LoadOptions, prefix: str
) -> Load:
    patterns = all_patterns(options.patterns, prefix, adapter.frozen)
    native, step = place
    contents = native.contents(step, [] if options.conversion else patterns)
    if options.conversion is not None:
        contents = _convert(adapter.state, contents, options.conversion, patterns)
    if options.patterns or prefix:
        check_match(patterns, native, contents)
    skipped: dict[str, Corrupt] = {}
    if options.skip_damaged:
        contents, patterns, skipped = without_damage(native, contents, patterns)
    options = options._replace(patterns=patterns)
    return Load(native, adapter.state, contents, options, ranks, skipped)


def _convert(
    state: Any, stored: _cairn.Contents, conversion: ConversionOptions, patterns: list[str]
) -> _cairn.Contents:
    """What the step contains after the conversion, and after the casts to dtypes of `state`."""
    contents = conversion.convert(stored, patterns)
    if not conversion.cast:
        return contents
    from cairn._load.conversions import other_dtypes

    casts = other_dtypes(_cairn.LoadPlan(contents, state, patterns), contents)
    return conversion.convert(stored, patterns, casts) if casts else contents


def agree_on_step(ranks: Ranks, native: _cairn.Store, step: int | None) -> int | None:
    """The step to load: `step`, or the latest step that rank 0 sees.

    Raises Invalid if the ranks name different steps, NotFound if the store has none.
    """
    if ranks.world_size == 1:
        return step
    import json

    def encode_local() -> bytes:
        if step is not None:
            return json.dumps([step_number(step), True]).encode()
        steps = native.steps()
        # If there are no steps, `contents` raises NotFound.
        latest = steps[-1] if steps else native.contents(None, []).step
        return json.dumps([latest, False]).encode()

    replies = [json.loads(one) for one in ranks.exchange(encode_local)]
    number, is_given = replies[0]
    if any(one[1] != is_given or (is_given and one[0] != number) for one in replies):
        given = [one[0] if one[1] else None for one in replies]
        raise Invalid(f"ranks load different steps, by rank: {given}: give all ranks the same step")
    return number


def plan_together(ranks: Ranks, plan: Callable[[], Load], device: Any = None) -> Load:
    """This rank's load, checked against the loads of the other ranks.

    Args:
        plan: makes this rank's load.
        device: the device that the call names, if any.

    Raises on all ranks what ``plan()`` raises on one of them; Invalid for unexpected keys if the
    load is strict.
    """
    import json

    loads: list[Load] = []

    def encode_local() -> bytes:
        loads.append(plan())
        has_devices = bool(loads[0].requests.devices())
        return json.dumps([has_devices, loads[0].unexpected]).encode("utf-8", "surrogatepass")

    replies = [json.loads(one) for one in ranks.exchange(encode_local)]
    load = loads[0]
    if ranks.world_size > 1:
        unexpected_on_all = set(load.unexpected)
        for _, unexpected in replies:
            unexpected_on_all &= set(unexpected)
        load.unexpected = tuple(fqn for fqn in load.unexpected if fqn in unexpected_on_all)
    load.check_unexpected()
    if load.read_once and ranks.world_size > 1:
        _set_holders(ranks, load.requests)
        have_devices = any(has_devices for has_devices, _ in replies)
        load.by_nccl = ranks.over_nccl(load.requests.devices(), have_devices, device)
    return load


def _set_holders(ranks: Ranks, requests: _cairn.Requests) -> None:
    """Sets the ranks that need a replicated tensor, where not all ranks do."""
    import json
    import zlib

    local_fqns = sorted(requests.whole_fqns())

    def encode_local() -> bytes:
        return zlib.compress(json.dumps(local_fqns).encode("utf-8", "surrogatepass"))

    replies = ranks.exchange(encode_local)
    if len(set(replies)) == 1:
        return
    holders: dict[str, list[int]] = {}
    for rank, one in enumerate(replies):
        for fqn in json.loads(zlib.decompress(one)):
            holders.setdefault(fqn, []).append(rank)
    meshes: dict[tuple[int, ...], _cairn.Mesh] = {}
    for fqn in local_fqns:
        members = tuple(holders[fqn])
        if len(members) < ranks.world_size:
            if members not in meshes:
                meshes[members] = _cairn.Mesh((len(members),), members)
            requests.set_holders(fqn, meshes[members])
