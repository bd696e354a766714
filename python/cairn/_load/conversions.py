"""Conversions of a load: names and shapes by rules, and dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.devices import HOST
from cairn._load.converted_keys import Key, convert_keys
from cairn._load.converted_load import StepConversion
from cairn._load.renamed_state import renamed_state
from cairn._load.rules import Rule, parse
from cairn._ranks.sharded import is_sharded
from cairn._tensors.contents import Leaf, TensorLeaf, ValueLeaf, leaf_at
from cairn._tensors.sources import is_torch_tensor, row_major
from cairn.errors import Invalid

Rename = Union[Mapping[str, str], Iterable[Mapping[str, Any]], None]
"""Regular expressions and what replaces their first match, or a list of rules (cairn.convert)."""

_Place = tuple[str, int, tuple[int, ...]]


class ConversionOptions(NamedTuple):
    """How a step is converted."""

    rules: list[Rule]
    dtype: int | None = None
    """Dtype of all floating-point tensors; None: their own."""
    cast: bool = False
    """Whether a load casts tensors to the dtypes of the state."""

    def convert(
        self,
        stored: _cairn.Contents,
        patterns: list[str],
        casts: dict[str, int] | None = None,
        *,
        reads_values: bool = False,
    ) -> _cairn.Contents:
        """The complete contents of a step after the conversion; `patterns` select new names. With
        `reads_values`, they contain long values. Raises Invalid."""
        leaves = [leaf_at(stored, i) for i in range(len(stored))]
        sources = [
            Key(leaf.fqn, i)
            if isinstance(leaf, ValueLeaf)
            else Key(leaf.fqn, i, leaf.info.dtype, leaf.info.shape)
            for i, leaf in enumerate(leaves)
        ]
        try:
            keys = convert_keys(sources, self.rules, self.dtype, casts or {})
        except Invalid as error:
            error.step = stored.step
            raise
        tree = stored.build(list(range(len(leaves))), lambda parts, fqn: parts)

        def value_of(key: Key) -> Any:
            leaf = leaves[key.source]
            return leaf.stored if isinstance(leaf, ValueLeaf) else _Described(leaf.kind, key)

        long: dict[str, _cairn.LongValue] = {}
        by_name: dict[str, Key] = {}

        def take(value: Any, fqn: str) -> Any:
            if isinstance(value, _cairn.LongValue):
                long[fqn] = value
                return _cairn.load_values([value])[0] if reads_values else value
            if not isinstance(value, _Described):
                return value  # a pickle remains one
            # Other keys may be escaped than before.
            key = by_name[fqn] = value.key._replace(fqn=fqn)
            return value.kind, key.dtype, key.shape, row_major(key.shape), 0, HOST, (), None

        state = renamed_state(tree, stored.fqns(), keys, value_of)
        batch = _cairn.flatten(state, take, patterns)
        shared = _shared_places(leaves, by_name)
        conversion = StepConversion(stored, sources, by_name)
        return _cairn.Contents(stored, batch, shared, long, conversion)


class _Described(NamedTuple):
    """A tensor without memory."""

    kind: int
    key: Key


def _shared_places(leaves: Sequence[Leaf], keys: Mapping[str, Key]) -> dict[str, _Place]:
    """The places of the tensors that still share the bytes of their owners: names, offsets in bytes
    and strides. An owner that was converted in another way shares nothing."""
    whole = {leaves[key.source].fqn: key for key in keys.values() if key.is_whole}
    names = {*keys, *(leaf.fqn for leaf in leaves)}
    shared = {}
    for key in whole.values():
        leaf = leaves[key.source]
        if not isinstance(leaf, TensorLeaf) or leaf.info.alias_of is None:
            continue
        info, owner = leaf.info, whole.get(leaf.info.alias_of)
        if owner is None:
            is_hidden = info.alias_of not in names
            if is_hidden and key.dtype == info.dtype:
                shared[key.fqn] = (info.alias_of, info.alias_offset_bytes, info.alias_strides)
            continue
        stored, item = leaves[owner.source].info, dtypes.item_bytes(info.dtype)
        offset = info.alias_offset_bytes
        if (key.dtype, owner.dtype) != (info.dtype, stored.dtype):
            if (owner.dtype, stored.dtype) != (key.dtype, info.dtype) or offset % item:
                continue
            offset = offset // item * dtypes.item_bytes(key.dtype)
        shared[key.fqn] = (owner.fqn, offset, info.alias_strides)
    return shared


def conversion_of(rename: Rename, dtype: Any = None, cast: bool = False) -> ConversionOptions:
    """The options. Raises Invalid for what cannot be rules."""
    code = None if dtype is None else _dtype_code(dtype)
    return ConversionOptions(parse(rename), code, cast)


def _dtype_code(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    if name in _cairn.DTYPES:
        return _cairn.DTYPES[name][0]
    raise Invalid(f"dtype={dtype!r}: not a dtype such as torch.bfloat16 or 'bfloat16'")


def other_dtypes(load_plan: _cairn.LoadPlan, contents: _cairn.Contents) -> dict[str, int]:
    """The dtypes of the state, by FQN, where they differ from the step. Uses up the plan."""
    found = {}
    for node, index in load_plan.request_contiguous():
        leaf = leaf_at(contents, index)
        value = load_plan.node(node)[0]
        code = None
        if dtypes.is_array(value):
            code = dtypes.code_of_numpy(value.dtype)
        elif is_torch_tensor(value) or is_sharded(value):
            code = dtypes.code_of_torch(value.dtype)
        if isinstance(leaf, TensorLeaf) and code not in (None, leaf.info.dtype):
            found[leaf.fqn] = code
    return found
