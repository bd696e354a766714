"""The rules, one function each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cairn.errors import Invalid

Rule = dict[str, Any]
"""A value in JSON: texts, integers, lists and dicts of them."""


def rename(names: Mapping[str, str]) -> Rule:
    """Renames keys: regular expressions, each with what replaces its first match. All of them apply
    to the names before the rule, so that two keys can exchange their names; a key that two of them
    match is an error."""
    return {"rename": dict(names)}


def drop(pattern: str) -> Rule:
    """Leaves out the keys that the expression matches."""
    return {"drop": pattern}


def split(
    pattern: str, into: Sequence[str], *, dim: int = 0, sizes: Sequence[int] | None = None
) -> Rule:
    """Divides one tensor into several along ``dim``: into equal parts, or into parts of ``sizes``
    elements, such as the query, key and value rows of a fused projection."""
    rule: Rule = {"split": pattern, "into": list(into), "dim": dim}
    return rule if sizes is None else {**rule, "sizes": list(sizes)}


def concat(parts: Sequence[str], to: str, *, dim: int = 0) -> Rule:
    """Joins several tensors along ``dim``. The first element of ``parts`` is an expression; what
    replaces its match gives the names of the other parts and of the result."""
    return {"concat": list(parts), "to": to, "dim": dim}


def stack(pattern: str, to: str, *, dim: int = 0, group: int | None = None) -> Rule:
    """Joins the tensors with the same new name along a new dimension ``dim``. Group ``group`` of
    the expression (by default the last one) is the position of a tensor; positions have no gaps."""
    rule: Rule = {"stack": pattern, "to": to, "dim": dim}
    return rule if group is None else {**rule, "group": group}


def unstack(pattern: str, to: str, *, dim: int = 0) -> Rule:
    """Divides a tensor into one per index of ``dim``, which they do not have. ``to`` contains
    ``{i}`` in place of the index."""
    return {"unstack": pattern, "to": to, "dim": dim}


def permute(pattern: str, dims: Sequence[int]) -> Rule:
    """Changes the order of the dimensions, as ``Tensor.permute``. ``(1, 0)`` transposes a
    matrix."""
    return {"permute": pattern, "dims": list(dims)}


def rearrange(pattern: str, factors: Sequence[int], order: Sequence[int], *, dim: int = 0) -> Rule:
    """Views ``dim`` as ``factors`` (one may be -1), permutes these by ``order``, and merges them
    again."""
    return {"rearrange": pattern, "factors": list(factors), "order": list(order), "dim": dim}


def cast(pattern: str, dtype: Any) -> Rule:
    """Casts the tensors that the expression matches to a dtype such as ``torch.bfloat16``."""
    return {"cast": pattern, "dtype": _name_of(dtype)}


def dequantize(
    dtype: Any = "bfloat16",
    *,
    scale: str = r"\.weight_scale_inv$",
    weight: str = ".weight",
    block: int = 128,
) -> Rule:
    """Multiplies block-scaled 8-bit matrices by their factors, which are then left out.

    Args:
        dtype: the dtype of the results.
        scale: expression of the factors, float32 matrices with one element per block.
        weight: what replaces its match in the name of the matrix.
        block: rows and columns of a block.
    """
    return {"dequantize": scale, "weight": weight, "block": block, "dtype": _name_of(dtype)}


def load_rules(path: str | os.PathLike[str]) -> list[Rule]:
    """The rules in a JSON file. Raises Invalid if it is not a list of dicts."""
    try:
        rules = json.loads(Path(path).read_text())
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"{os.fspath(path)}: the rules are not JSON ({error}): save_rules writes such a file"
        ) from None
    rules = [rules] if isinstance(rules, dict) else rules
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise Invalid(
            f"{os.fspath(path)}: a JSON list of rules is needed: save_rules writes such a file"
        )
    return rules


def save_rules(path: str | os.PathLike[str], rules: Iterable[Rule]) -> None:
    """Writes a JSON file that ``kv-admin --rules`` and :func:`load_rules` read."""
    Path(path).write_text(json.dumps(list(rules), indent=2) + "\n")


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
