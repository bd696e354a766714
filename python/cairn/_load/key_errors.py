"""Errors for keys that a step or a state lacks, or has with another dtype or shape. Each names what
to try next. Loads import this module only when they fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.patterns import literal
from cairn._tensors.stateful import AT_TOP, is_stateful
from cairn.errors import Invalid, NotFound, refuse



class Advice(NamedTuple):
    """How a caller passes what an error proposes."""

    give: str
    """Precedes arguments of `Store.load`."""
    other_ways: str
    renames: bool = True
    """Whether keys can be found under other names (``rename=``, ``strip_wrappers=``)."""


_OF_LOAD = Advice("pass", "load a part with keys=..., use strict=False, or read() what you need")
_OF_RESUME = Advice(
    "use Store.load with",
    "use strict=False, or load a part with Store.load, which takes keys=...",
)


def advice(is_resume: bool) -> Advice:
    """`is_resume`: the caller is not `Store.load`, and takes only `strict` of its arguments."""
    return _OF_RESUME if is_resume else _OF_LOAD


_CAST_TO = frozenset({"float64", "float32", "float16", "bfloat16"})
_CAST_FROM = _CAST_TO | {"float8_e4m3fn", "float8_e5m2"}


def _close_name(name: str, names: Iterable[str]) -> str | None:
    """The one of the names that was probably meant."""
    try:
        return _cairn.close_name(name, list(names))
    except (TypeError, UnicodeError):  # a name that is not valid Unicode
        return None


def no_match(patterns: list[str], contents: _cairn.Contents) -> NotFound:
    """The error for patterns that match no key of a step with these contents."""
    names = _with_containers(contents.fqns())
    literals = {literal(pattern): pattern for pattern in patterns if pattern in names}
    close = next((one for one, pattern in literals.items() if one != pattern), None)
    return _no_key(f"that matches {patterns}", patterns[0], names, contents.step, close)


def _with_containers(fqns: list[str]) -> list[str]:
    """The keys, and what contains them, which a pattern can name as well."""
    found = dict.fromkeys(fqns)
    for fqn in fqns:
        while "." in fqn:
            fqn = fqn.rpartition(".")[0]
            found[fqn] = None
    return list(found)


def no_such_key(fqn: str, contents: _cairn.Contents) -> NotFound:
    """The error for a key that a step with these contents lacks."""
    return _no_key(f"'{fqn}'", fqn, contents.fqns(), contents.step)


def _no_key(
    what: str, key: str, names: list[str], step: int, close: str | None = None
) -> NotFound:
    close = close or _close_name(key, names)
    way_out = f"did you mean {close!r}?" if close else "keys() lists them"
    return NotFound(f"step {step} has no key {what}: {way_out}", key=key, step=step)


def missing_keys(
    missing: tuple[str, ...],
    contents: _cairn.Contents,
    unexpected: Sequence[str],
    advice: Advice = _OF_LOAD,
) -> NotFound:
    """The error of a strict load for keys of the state that the step lacks. `unexpected`: the keys
    that only the step has."""
    step, stored = contents.step, contents.fqns()
    way_out = _way_without_wrappers(missing, unexpected)
    if not way_out and len(unexpected) == len(contents):
        way_out = _way_to_all(missing[0], stored, advice)
    if not way_out:
        close = _close_name(missing[0], stored)
        other_ways = advice.other_ways
        way_out = f"did you mean '{close}'? Else {other_ways}" if close else other_ways
    return NotFound(
        f"step {step} lacks {_some(missing)} of the state: {way_out}", key=missing[0], step=step
    )


def no_key_of_state(
    missing: Sequence[str],
    contents: _cairn.Contents,
    unexpected: Sequence[str],
    advice: Advice = _OF_LOAD,
) -> NotFound:
    """The error of a load that is not strict and would load nothing."""
    way_out = _way_without_wrappers(missing, unexpected) if advice.renames else ""
    way_out = way_out or _way_to_all(missing[0], unexpected, advice)
    if not way_out:
        close = _close_name(missing[0], unexpected)
        way_out = f"did you mean '{close}'?" if close else "keys() lists those of the step"
    return NotFound(
        f"step {contents.step} has no key of the state, which has {_some(missing)}: {way_out}",
        key=missing[0],
        step=contents.step,
    )


def check_wrappers(
    missing: Sequence[str], contents: _cairn.Contents, unexpected: Sequence[str]
) -> None:
    """Raises NotFound if a load that is not strict would load nothing of a top-level key of the
    state because of the names of wrappers."""
    lacking = _by_first(missing)
    others = _by_first(unexpected)
    loaded = _by_first(set(contents.fqns()).difference(unexpected))
    for first in lacking.keys() & others.keys() - loaded.keys():
        if way_out := _way_without_wrappers(lacking[first], others[first]):
            raise NotFound(
                f"step {contents.step} has no key of '{first}' of the state, which has "
                f"{_some(lacking[first])}: {way_out}",
                key=lacking[first][0],
                step=contents.step,
            )


def _by_first(fqns: Iterable[str]) -> dict[str, list[str]]:
    """The keys by their first path element."""
    found: dict[str, list[str]] = {}
    for fqn in fqns:
        found.setdefault(fqn.partition(".")[0], []).append(fqn)
    return found


def check_no_module(state: Any, fqn: str = "") -> None:
    """Raises Invalid for a module or another object with a state below the top level, which a load
    does not fill."""
    if isinstance(state, (list, tuple)):
        state = dict(enumerate(state))
    if not isinstance(state, dict):
        if fqn and is_stateful(state):
            name = type(state).__name__
            raise refuse(fqn, f"a {name}, which is only loaded at the top level of a state", AT_TOP)
        return
    for key, value in state.items():
        check_no_module(value, f"{fqn}.{key}" if fqn else str(key))


def unexpected_keys(
    unexpected: tuple[str, ...], step: int, advice: Advice = _OF_LOAD
) -> Invalid:
    """The error of a strict load for keys of the step that the state lacks."""
    return Invalid(
        f"the state lacks {_some(unexpected)} of step {step}: {advice.other_ways}",
        key=unexpected[0],
        step=step,
    )


def _way_without_wrappers(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """How a load finds keys that differ only by the names of wrappers; empty: no key does."""
    bare = {_cairn.without_wrappers(fqn): fqn for fqn in unexpected}
    for fqn in missing:
        other = bare.get(_cairn.without_wrappers(fqn))
        if other is not None and other != fqn:
            return f"the step has '{other}' in place of '{fqn}', so pass strip_wrappers=True"
    return ""


def _way_to_all(fqn: str, stored: Sequence[str], advice: Advice) -> str:
    """How a load finds the keys if all names of the step, such as `fqn`'s, have a prefix more, or
    one less (``module.``, of a model in a wrapper). Empty: `fqn` shows no such prefix."""
    for other in stored:
        if other.endswith(f".{fqn}"):
            return f"the step has '{other}', so {advice.give} prefix={other[: -len(fqn) - 1]!r}"
    names = set(stored) if advice.renames else ()
    above, _, below = fqn.partition(".")
    while below:
        if below in names:
            return f"the step has '{below}', so {advice.give} rename={{'^': {above + '.'!r}}}"
        first, _, below = below.partition(".")
        above = f"{above}.{first}"
    return ""


def _some(fqns: Sequence[str]) -> str:
    shown = ", ".join(f"'{fqn}'" for fqn in fqns[:5])
    more = f", ... ({len(fqns)} keys)" if len(fqns) > 5 else ""
    return shown + more


def way_to_load(
    fqn: str,
    stored: tuple[int, tuple[int, ...]],
    given: tuple[int, tuple[int, ...]],
    advice: Advice,
) -> str:
    """What to do about a tensor of the state whose (dtype code, shape) differ from the step."""
    if stored[1] != given[1]:
        way_out = f"{advice.give} keys='!{fqn}' to leave it out"
        return f"{way_out}, or read a part of it with read_slice()"
    if dtypes.name_of(stored[0]) in _CAST_FROM and dtypes.name_of(given[0]) in _CAST_TO:
        return f"{advice.give} cast=True"
    return "give the state the dtype of the step, or read() and convert it"
