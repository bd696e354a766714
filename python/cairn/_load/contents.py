"""What a call reads of a step: the part that patterns select, after a conversion, without what is
damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.patterns import patterns_for
from cairn._tensors.sources import row_major
from cairn.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from cairn._load.conversions import ConversionOptions, Rename


def conversion_of(
    rename: Rename, dtype: Any = None, cast: bool = False, *, takes_stored: bool = False
) -> ConversionOptions | None:
    """The options of a conversion (cairn._load.conversions), which most loads do not import. Raises
    Invalid, also if there are any and the call takes stored tensors."""
    if rename is None and dtype is None and not cast:
        return None
    if takes_stored:
        raise Invalid("mmap and skip_damaged take stored tensors, which are not converted")
    from cairn._load import conversions

    return conversions.conversion_of(rename, dtype, cast)


def contents_of(
    native: _cairn.Store,
    step: int | None,
    selected: list[str],
    conversion: ConversionOptions | None = None,
) -> _cairn.Contents:
    """What the patterns select of a step, after the conversion. Raises NotFound if this is nothing
    although there are patterns."""
    contents = native.contents(step, [] if conversion else selected)
    if conversion is None:
        check_match(selected, native, contents)
        return contents
    converted = conversion.convert(contents, selected)
    if selected and len(converted) == 0:
        from cairn._load.key_errors import no_match

        raise no_match(selected, conversion.convert(contents, []))
    return converted


def stored_name(contents: _cairn.Contents, fqn: str) -> str | None:
    """The stored tensor that has exactly the bytes of a tensor of the contents; None: there is
    none, because it is a part of another one, or made of several."""
    if contents.is_converted:
        return contents.conversion.stored_name(fqn)
    info = contents.find_tensor(fqn)
    if info.alias_of is None:
        return fqn
    owner = contents.find_tensor(info.alias_of)
    is_whole = info.nbytes == owner.nbytes and info.alias_strides == row_major(info.shape)
    return owner.fqn if is_whole else None


def check_match(selected: list[str], native: _cairn.Store, contents: _cairn.Contents) -> None:
    """Raises NotFound if the patterns, of which `contents` is the result, match no key."""
    if selected and len(contents) == 0:
        from cairn._load.key_errors import no_match

        raise no_match(selected, native.contents(contents.step, []))


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
