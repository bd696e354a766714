"""Loads in place, which the ranks of a store make together. All functions are collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.patterns import all_patterns
from cairn._load.contents import check_match
from cairn._load.damage import without_damage
from cairn._load.load import Load, LoadOptions
from cairn._load.multi_rank_load import agree_on_step, plan_together
from cairn._opened.opened import Opened
from cairn._opened.tiers import Tiers, locate_together
from cairn._ranks.ranks import Ranks
from cairn._tensors.stateful import StatefulAdapter
from cairn.errors import Corrupt

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
