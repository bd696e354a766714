"""Key patterns for parts of a state: below a prefix, without excluded keys.

The C++ side matches the patterns (core/state_dict/key_pattern.h).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Union

from cairn.errors import Invalid

Patterns = Union[str, Iterable[str], None]
"""One pattern, several patterns, or None, which selects everything."""

_WILDCARD = re.compile(r"[*?\[]")
_MAX_LISTED = 64


def pattern_list(patterns: Patterns) -> list[str]:
    """The patterns as a list, which is empty for None."""
    if patterns is None:
        return []
    return [patterns] if isinstance(patterns, str) else list(patterns)


def literal(fqn: str) -> str:
    """The pattern without wildcards that is this FQN, whatever characters it has. It also matches
    the keys below it."""
    escaped = _WILDCARD.sub(r"[\g<0>]", fqn)
    return f"[!]{escaped[1:]}" if escaped.startswith("!") else escaped


def patterns_for(fqn: str) -> list[str]:
    """Patterns that match `fqn`, and what is below it."""
    return [literal(fqn)] if fqn else []


def exact_patterns(fqns: Iterable[str]) -> list[str]:
    """Patterns that match `fqns`, and possibly other names. Empty, which matches everything, if
    they are so many that listing each takes longer than listing all."""
    fqns = list(fqns)
    if len(fqns) > _MAX_LISTED or not all(isinstance(fqn, str) and fqn for fqn in fqns):
        return []
    return [literal(fqn) for fqn in fqns]


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
        below = [_joined(above, one) for one in patterns]
        has_includes = any(not one.startswith("!") for one in patterns)
        patterns = below if has_includes else [above, *below]
    return patterns + [f"!{literal(fqn)}" for fqn in frozen]


def _joined(above: str, pattern: str) -> str:
    return f"!{above}.{pattern[1:]}" if pattern.startswith("!") else f"{above}.{pattern}"
