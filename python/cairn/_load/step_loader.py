"""`StepLoader`: loads in place, which the ranks of a store make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from cairn import _cairn
from cairn._base.patterns import all_patterns
from cairn._load.damage import without_damage
from cairn._load.load import Load, LoadOptions
from cairn._load.multi_rank_load import agree_on_step, plan_together
from cairn._load.step_reader import StepReader, check_match
from cairn._load.tiers import Tiers, locate_together
from cairn._ranks.ranks import Ranks
from cairn.errors import Corrupt

if TYPE_CHECKING:
    from cairn._load.conversions import ConversionOptions
    from cairn.reports import LoadReport


class Adapter(Protocol):
    """The state to fill. Objects with ``load_state_dict`` receive what was loaded afterwards."""

    state: Any
    frozen: list[str]

    def load_into_objects(self) -> None: ...


class StepLoader(StepReader):
    """The part of :class:`cairn.Store` that loads in place. All calls are collective."""

    _ranks: Ranks

    def _locate(
        self, step: int | None, tiers: Tiers | None
    ) -> tuple[_cairn.Store, int | None] | None:
        """The one of the stores that has the step, and the step; None if none of them has it.
        Without tiers, this store. Collective."""
        if tiers is None:
            return self._native, agree_on_step(self._ranks, self._native, step)
        found = locate_together(self._ranks, tiers, step)
        if found is None:
            return None
        return tiers.open_together(found.tier, self._ranks.communicator), found.step

    def _load_from(
        self,
        place: tuple[_cairn.Store, int | None],
        make_adapter: Callable[[], Adapter],
        options: LoadOptions,
        prefix: str,
    ) -> LoadReport:
        """Loads the step at `place`. Collective."""
        adapters: list[Adapter] = []

        def plan() -> Load:
            adapters.append(make_adapter())
            return self._plan_load(adapters[0], place, options, prefix)

        load = plan_together(self._ranks, plan, options.device)
        report = self._ranks.run_together(load.run)
        # An object's load_state_dict may fail on one rank only.
        self._ranks.run_together(adapters[0].load_into_objects)
        return report

    def _plan_load(
        self,
        adapter: Adapter,
        place: tuple[_cairn.Store, int | None],
        options: LoadOptions,
        prefix: str,
    ) -> Load:
        patterns = all_patterns(options.patterns, prefix, adapter.frozen)
        native, step = place
        contents = native.contents(step, [] if options.conversion else patterns)
        if options.conversion is not None:
            contents = self._convert(adapter.state, contents, options.conversion, patterns)
        if options.patterns or prefix:
            check_match(patterns, native, contents)
        skipped: dict[str, Corrupt] = {}
        if options.skip_damaged:
            contents, patterns, skipped = without_damage(native, contents, patterns)
        options = options._replace(patterns=patterns)
        return Load(native, adapter.state, contents, options, self._ranks, skipped)

    @staticmethod
    def _convert(
        state: Any, stored: _cairn.Contents, conversion: ConversionOptions, patterns: list[str]
    ) -> _cairn.Contents:
        """The contents of the step after the conversion and the casts to dtypes of `state`."""
        contents = conversion.convert(stored, patterns)
        if not conversion.cast:
            return contents
        from cairn._load.conversions import other_dtypes

        casts = other_dtypes(_cairn.LoadPlan(contents, state, patterns), contents)
        return conversion.convert(stored, patterns, casts) if casts else contents
