"""Finds the damaged tensors and long values of a step, and loads the rest."""

from __future__ import annotations

from cairn import _cairn
from cairn._base.patterns import patterns_for
from cairn.errors import Corrupt


def damaged_keys(native: _cairn.Store, contents: _cairn.Contents) -> dict[str, Corrupt]:
    """The error of each tensor or long value that cannot be read, by FQN. Reads all of them."""
    keys = set(contents.fqns())  # not owners of shared memory, which are not leaves
    errors = {error.key or "": error for error in native.find_damaged(contents)}
    return {fqn: error for fqn, error in errors.items() if fqn in keys}


def without_damage(
    native: _cairn.Store, contents: _cairn.Contents, patterns: list[str]
) -> tuple[_cairn.Contents, dict[str, Corrupt]]:
    """The contents that ``patterns`` select and that can be read, and the errors of the others."""
    damaged = damaged_keys(native, contents)
    if not damaged:
        return contents, {}
    patterns = patterns + [f"!{each}" for fqn in damaged for each in patterns_for(fqn)]
    rest = native.contents(contents.step, patterns)
    # A pattern of a name with wildcards in it may match another name, too.
    left_out = set(contents.fqns()) - set(rest.fqns())
    unclear = "it was left out because its name is similar to that of a damaged one"
    skipped = {
        fqn: damaged.get(fqn) or Corrupt(f"{unclear} (key {fqn})", key=fqn, step=contents.step)
        for fqn in sorted(left_out)
    }
    return rest, skipped
