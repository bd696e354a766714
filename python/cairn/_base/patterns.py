"""Key patterns of parts of a state: below a prefix, without what is left out.

The patterns themselves are matched in C++ (core/state_dict/key_pattern.h).
"""

from __future__ import annotations

_WILDCARDS = frozenset("*?[]!")


def literal(fqn: str) -> str:
    """A pattern that takes `fqn`, whatever it holds, and perhaps some more."""
    # "?" stands for itself as for any other character.
    return "".join("?" if char in _WILDCARDS else char for char in fqn)


def clean_prefix(prefix: str) -> str:
    """A prefix may be given with the separator behind it, as torch's tools do."""
    return prefix.removesuffix(".")


def all_patterns(patterns: list[str], prefix: str, frozen: list[str]) -> list[str]:
    """`patterns` below `prefix`, without `frozen`, which are FQNs with the prefix."""
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
    """Patterns that take what is below the keys of `pattern` too, as one without wildcards does."""
    return [pattern, f"{pattern}.**"] if _WILDCARDS & set(pattern) else [pattern]
