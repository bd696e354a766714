"""What a load converts on its way: names and shapes by rules, and dtypes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union

from cairn import _cairn
from cairn._base import dtypes
from cairn._ranks.sharded import is_sharded
from cairn._tensors.contents import TensorLeaf, leaf_at
from cairn._tensors.sources import is_torch_tensor
from cairn.errors import Invalid

Rename = Union[Mapping[str, str], Iterable[Mapping[str, Any]], None]
"""Regular expressions and what replaces their first match, or a list of rules (cairn.convert)."""


class ConversionOptions(NamedTuple):
    """How a step is converted."""

    rules: str
    """JSON."""
    dtype: int | None = None
    """That of all floating-point tensors; None: their own."""
    cast: bool = False
    """Whether a load casts tensors to the dtypes of the state."""

    def convert(
        self, stored: _cairn.Contents, patterns: list[str], casts: dict[str, int] | None = None
    ) -> _cairn.Contents:
        """The complete contents of a step after the conversion. Raises Invalid."""
        return _cairn.convert(stored, self.rules, self.dtype, casts or {}, patterns)


def conversion_of(
    rename: Rename, dtype: Any = None, cast: bool = False, *, takes_stored: bool = False
) -> ConversionOptions:
    """The options. Raises Invalid for what cannot be rules, and if the call takes stored
    tensors."""
    if takes_stored:
        raise Invalid("mmap and skip_damaged take stored tensors, which are not converted")
    code = None if dtype is None else _dtype_code(dtype)
    return ConversionOptions(rules_json(rename), code, cast)


def rules_json(rename: Rename) -> str:
    """The rules as JSON, which C++ checks. Raises Invalid."""
    if isinstance(rename, Mapping):
        rules: Any = [{"rename": dict(rename)}] if rename else []
    elif rename is None:
        rules = []
    elif isinstance(rename, (str, bytes)):
        raise Invalid(f"rename={rename!r}: a dict of regular expressions or a list of rules")
    else:
        rules = list(rename)
    try:
        return json.dumps(rules)
    except (TypeError, ValueError) as error:
        raise Invalid(f"rename: rules consist of texts, numbers, lists, dicts: {error}") from None


def _dtype_code(dtype: Any) -> int:
    if isinstance(dtype, str) and dtype in _cairn.DTYPES:
        return _cairn.DTYPES[dtype][0]
    name = str(dtype).removeprefix("torch.")
    if name in _cairn.DTYPES:
        return _cairn.DTYPES[name][0]
    raise Invalid(f"dtype={dtype!r}: not a dtype such as torch.bfloat16 or 'bfloat16'")


def other_dtypes(load_plan: _cairn.LoadPlan, contents: _cairn.Contents) -> dict[str, int]:
    """The dtypes of the state, by FQN, where they are not those of the step. Uses up the plan."""
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
