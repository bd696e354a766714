"""Resuming: loads the latest step of a store and its mirrors, or the last one that is undamaged.

All ranks make the same decisions:

1. Rank 0 determines the latest step, and all ranks load it together.
2. If a rank finds damage, all ranks learn about it. They try the other copies of the step, and then
   the one from which it continued, in an order that rank 0 determines.
3. Errors other than damage are raised.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cairn._base.addresses import step_number
from cairn._base.tree import FILES, WEIGHTS
from cairn._load.in_place import Place, load_from, locate
from cairn._load.load import LoadOptions
from cairn._opened.tiers import Tier, Tiers
from cairn._mirror.options import Mirror
from cairn.errors import Corrupt, Error, Invalid, NotFound
from cairn.store import Store
from cairn.torch._rank_parts import RankPart

if TYPE_CHECKING:
    from cairn import _cairn
    from cairn.reports import LoadReport

OnDamage = Literal["raise", "previous"]


def check_store(store: Any) -> None:
    """Raises Invalid if an address, or something else, was given in place of an open store."""
    if not isinstance(store, Store):
        address = repr(os.fspath(store)) if isinstance(store, (str, os.PathLike)) else "ADDRESS"
        raise Invalid(
            f"a {type(store).__name__} in place of an open store: pass what "
            f"cairn.open({address}, mode='a') returns"
        )


class ResumedStep(int):
    """The number of the step that was loaded.

    Attributes:
        skipped: the newer steps that were not loaded because they are damaged, with their errors.
    """

    skipped: Mapping[int, Corrupt]

    def __new__(cls, number: int, skipped: Mapping[int, Corrupt]) -> ResumedStep:
        made = super().__new__(cls, number)
        made.skipped = MappingProxyType(dict(skipped))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return ResumedStep, (int(self), dict(self.skipped))


class ResumeOptions(NamedTuple):
    """How a training resumes."""

    strict: bool
    on_damage: OnDamage
    mirrors: Sequence[Mirror]
    parts: Sequence[RankPart]
    base: int | None
    strip_wrappers: bool
    takes_base: str
    """Where the caller passes ``base=``."""

    def check(self) -> None:
        """Raises Invalid if the options contradict each other."""
        if self.on_damage not in ("raise", "previous"):
            raise Invalid(f"on_damage={self.on_damage!r}: give 'raise' or 'previous'")
        if self.on_damage == "previous" and not self.strict:
            # Leaves that the older step lacks would keep what was read from the damaged one.
            raise Invalid("on_damage='previous' requires strict=True")


class Resume:
    """Resumes once. All methods are collective.

    Attributes:
        skipped: the damaged steps, with their errors, the same on all ranks.
        passed: the latest step and the highest one, if a run has gone back from that.
        absent: the keys of the parts that the step lacks and that were not loaded.
    """

    def __init__(self, store: Store, state: Any, options: ResumeOptions) -> None:
        self._opened, self._state, self._options = store.opened, state, options
        self._is_latest = True
        self._ranks = self._opened.ranks
        self._tiers = self._opened.tiers
        self.skipped: dict[int, Corrupt] = {}
        self.passed: tuple[int, int] | None = None
        self.absent: list[str] = []

    def run(self, step: int | None) -> ResumedStep | None:
        """Loads `step` or the latest one, and returns its number; None if there is no step."""
        self._options.check()
        self._is_latest = step is None
        if own_tiers := self._options.mirrors:
            self._tiers = self._with_mirrors(own_tiers)
        try:
            self._ranks.begin("resume")
            for number in self._candidates(step):
                if self._load_copies(number):
                    return ResumedStep(number, self.skipped)
            if self.skipped:
                raise self._nothing_is_left()
            return None
        finally:
            if own_tiers:
                self._tiers.close()

    def warn(self) -> None:
        """Warns of the steps that were skipped, of those from which a run has gone back, and of the
        parts that were not loaded. To be called by the public function."""
        for number, error in self.skipped.items():
            warnings.warn(f"step {number} was skipped: {error}", RuntimeWarning, stacklevel=3)
        if self.passed is not None:
            latest, highest = self.passed
            text = f"step {latest}, the last one on the line of the latest save, is resumed, and "
            text += f"not step {highest}, from which the run has gone back; step= selects one"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        for key in self.absent:
            text = f"the step has no state of '{key}', which remains as it is"
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _with_mirrors(self, mirrors: Sequence[Mirror]) -> Tiers:
        """The tiers of the store and the mirrors, for this resume only."""
        own = self._opened.credentials
        more = (Tier(str(mirror), mirror.credentials or own) for mirror in mirrors)
        return Tiers(self._opened.native, (*self._tiers.others, *more))

    def _candidates(self, step: int | None) -> list[int]:
        """The steps to try, the first one first: `step`, by default the latest one that rank 0
        sees, and what follows on its line, without the base. Sets `passed`."""
        if step is not None and self._options.on_damage == "raise":
            return [step_number(step)]
        where = self._tiers

        def find() -> tuple[list[int], tuple[int, int] | None]:
            base = self._options.base
            if step is not None:
                older = where.line(end=step_number(step), base=base)
                return [step, *(number for number in older if number != step)], None
            line = where.line(base=base)
            highest = max((number for number in where.steps() if number != base), default=None)
            return line, None if line[:1] in ([highest], []) else (line[0], highest)

        line, self.passed = self._ranks.on_first(find)
        return line

    def _load_copies(self, number: int) -> bool:
        """Loads the first undamaged copy of a step. Returns False if all are damaged, in which case
        `skipped` has the error of the first one."""
        if self._options.on_damage == "raise":
            self._load(next(self._places(number)), number)
            return True
        for place in self._places(number):
            damage = self._try_load(place, number)
            if damage is None:
                self.skipped.pop(number, None)
                return True
            self.skipped.setdefault(number, damage)
        return False

    def _places(self, number: int) -> Iterator[Place]:
        tiers = self._tiers
        yield locate(self._opened, number, tiers)
        if not tiers.others:
            return
        for tier in self._ranks.on_first(lambda: tiers.copies(number)[1:]):
            yield tiers.open_together(tier, self._ranks.communicator), number

    def _try_load(self, place: Place, number: int) -> Corrupt | None:
        """The damage that a rank has found, the same on all ranks; None if the step is loaded."""
        problem: Error | None = None
        try:
            self._load(place, number)
        except Error as error:
            if self._ranks.communicator is not None and not self._ranks.has_agreed_on(error):
                raise
            problem = error
        described = _described(problem)
        replies = self._ranks.exchange_values(lambda: described)
        if problem is None:  # an error on one rank is raised on all ranks
            return None
        if any(reply is None or not reply["is_damage"] for reply in replies):
            raise problem
        return Corrupt(replies[0]["text"], step=number, **replies[0]["where"])

    def _load(self, place: Place, number: int) -> LoadReport:
        parts = self._options.parts
        # The files of a model are not part of what is trained, and differ between versions.
        patterns = [f"!{FILES}", f"!{WEIGHTS}", *(f"!{part.key}" for part in parts)]
        options = LoadOptions(
            self._options.strict,
            patterns,
            strip_wrappers=self._options.strip_wrappers,
            is_resume=True,
        )
        found: list[tuple[RankPart, Mapping[str, Any]]] = []

        def read() -> None:
            for part in parts:
                if self._options.strict or part.is_in(place[0], number):
                    found.append((part, part.read(place[0], number)))
                else:
                    self.absent.append(part.key)

        if parts:  # before anything changes
            self._ranks.run_together(read)
        try:
            report = load_from(self._opened, place, self._state, options)
        except NotFound as error:
            if self._may_be_base(place[0], number):
                note = _NOTE.format(number=number, place=self._options.takes_base)
                if hasattr(error, "add_note"):
                    error.add_note(note)
                else:  # Python 3.10
                    error.args = (f"{error}\n{note}",)
            raise
        if parts:
            self._ranks.run_together(lambda: [part.load(own) for part, own in found])
        return report

    def _may_be_base(self, native: _cairn.Store, number: int) -> bool:
        """Whether the step that was chosen may not belong to this run."""
        is_chosen = self._is_latest and self._options.base is None
        return is_chosen and native.step_info(number).parent is None

    def _nothing_is_left(self) -> Corrupt:
        newest = max(self.skipped)
        texts = "; ".join(f"step {step}: {error}" for step, error in self.skipped.items())
        return Corrupt(f"every step that could be resumed is damaged: {texts}", step=newest)


_NOTE = (
    "A resume loads the latest step. If the run starts from step {number}, such as an imported "
    "model, pass base={number} to {place}."
)


def _described(error: Error | None) -> dict[str, Any] | None:
    if error is None:
        return None
    where = {name: getattr(error, name) for name in ("key", "file", "offset")}
    return {"is_damage": isinstance(error, Corrupt), "text": str(error), "where": where}
