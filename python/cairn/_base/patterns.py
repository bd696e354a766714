"""Key patterns for parts of a state: below a prefix, without excluded keys.

The C++ side matches the patterns (core/state_dict/key_pattern.h).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

from cairn.errors import Invalid

Patterns = Union[str, Iterable[str], None]
"""One pattern, several patterns, or None, which selects everything."""

_WILDCARDS = frozenset("*?[]!")
_MAX_LISTED = 64


def pattern_list(patterns: Patterns) -> list[str]:
    """The patterns as a list, which is empty for None."""
    if patterns is None:
        return []
    return [patterns] if isinstance(patterns, str) else list(patterns)


def literal(fqn: str) -> str:
    """A pattern that matches `fqn`, whatever characters it has, and possibly a few other names."""
    # "?" matches every character, itself included.
    return "".join("?" if char in _WILDCARDS else char for char in fqn)


def patterns_for(fqn: str) -> list[str]:
    """Patterns that match `fqn`, whatever characters it has, and possibly a few other names."""
    return [literal(fqn)] if fqn else []


def exact_patterns(fqns: Iterable[str]) -> list[str]:
    """Patterns that match `fqns`, and possibly other names. Empty, which matches everything, if
    they have wildcards, or are so many that listing each takes longer than listing all."""
    fqns = list(fqns)
    few = len(fqns) <= _MAX_LISTED
    return fqns if few and all(_is_literal(fqn) for fqn in fqns) else []


def _is_literal(fqn: object) -> bool:
    return isinstance(fqn, str) and bool(fqn) and not _WILDCARDS & set(fqn)


def clean_prefix(prefix: str) -> str:
    """The prefix without a trailing separator, which torch's tools append."""
    if not isinstance(prefix, str):
        raise TypeError(f"{prefix!r} is not a str: a key, or the beginning of keys, is needed")
    if "\\" in prefix:
        raise Invalid(f"a prefix has no backslash: {prefix!r}")
    return prefix.removesuffix(".")


def all_patterns(patterns: list[str], prefix: str, frozen: list[str]) -> list[str]:
    """`patterns` below `prefix`, without the keys in `frozen`, which include the prefix."""
    if prefix:
        above = literal(prefix)
        below = [each for one in patterns for each in _joined(above, one)]
        has_includes = any(not one.startswith("!") for one in patterns)
        patterns = below if has_includes else [*_with_below(above), *below]
    return patterns + [f"!{each}" for fqn in frozen for each in _with_below(literal(fqn))]


def _joined(above: str, pattern: str) -> list[str]:
    sign, name = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
    joined = f"{above}.{name}"
    takes_below = not _WILDCARDS & set(name)
    return [sign + each for each in (_with_below(joined) if takes_below else [joined])]


def _with_below(pattern: str) -> list[str]:
    """Patterns that also match what is below the keys of `pattern`, as a pattern without wildcards
    does."""
    return [pattern, f"{pattern}.**"] if _WILDCARDS & set(pattern) else [pattern]
