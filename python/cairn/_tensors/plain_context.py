"""The context of a tensor subclass as data for JSON, and back, without pickle.

``None``, ``bool``, ``int``, ``str``, finite floats and lists represent themselves. Everything else
is an object with one member, whose name is the kind:

    {"float": "inf"}  {"tuple": [...]}  {"size": [...]}  {"dict": [[key, value], ...]}
    {"dtype": "float8_e4m3fn"}  {"device": "cpu"}  {"layout": "strided"}
    {"memory_format": "preserve_format"}
    {"enum": [CLASS, MEMBER]}  {"namedtuple": [CLASS, [...]]}
    {"dataclass": [CLASS, [[field, value], ...]]}

CLASS is ``MODULE:NAME``. Decoding creates objects only of classes that the allow-list contains
(cairn._tensors.subclass_registry).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from cairn._base import dtypes
from cairn._tensors.subclass_registry import find_class, name_of_class

_ITSELF = (type(None), bool, int, str)
_CONSTANTS = ("dtype", "layout", "memory_format")
_MAX_DEPTH = 32


class Unsupported(Exception):
    """A context that this module cannot represent; the text states what it contains."""


class Malformed(Exception):
    """Data that no context is encoded as."""


def encode(value: Any, depth: int = 0) -> Any:
    """The data for JSON. Raises Unsupported."""
    kind = type(value)
    if kind in _ITSELF or (kind is float and math.isfinite(value)):
        return value
    if depth == _MAX_DEPTH:
        raise Unsupported(f"is nested more than {_MAX_DEPTH} levels deep")
    if kind is float:
        return {"float": str(value)}
    if kind is list:
        return _encode_all(value, depth)
    if kind is tuple:
        return {"tuple": _encode_all(value, depth)}
    if kind is dict:
        return {"dict": [_encode_all(item, depth) for item in value.items()]}
    if isinstance(value, enum.Enum):
        return {"enum": [name_of_class(kind), value.name]}
    if dataclasses.is_dataclass(value):
        return {"dataclass": [name_of_class(kind), _encode_fields(value, depth)]}
    if _is_namedtuple(kind):
        return {"namedtuple": [name_of_class(kind), _encode_all(value, depth)]}
    return _encode_of_torch(value)


def _encode_all(values: Any, depth: int) -> list[Any]:
    return [encode(value, depth + 1) for value in values]


def _encode_fields(value: Any, depth: int) -> list[list[Any]]:
    fields = dataclasses.fields(value)
    if not all(field.init for field in fields):
        raise Unsupported(f"contains a {type(value).__name__} with fields that it computes")
    return [[field.name, encode(getattr(value, field.name), depth + 1)] for field in fields]


def _encode_of_torch(value: Any) -> dict[str, Any]:
    torch = dtypes.require_torch()
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind in _CONSTANTS:
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    raise Unsupported(f"contains a {type(value).__module__}.{type(value).__qualname__}")


def decode(data: Any, depth: int = 0) -> Any:
    """The context. Raises Malformed; Invalid for a class that the allow-list does not contain."""
    if type(data) in _ITSELF or type(data) is float:
        return data
    if depth == _MAX_DEPTH:
        raise Malformed("it is nested too deep")
    if type(data) is list:
        return [decode(element, depth + 1) for element in data]
    if type(data) is not dict or len(data) != 1:
        raise Malformed("it is not a context")
    ((kind, content),) = data.items()
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise Malformed(f"it has an unknown kind {kind!r}")
    try:
        return decoder(content, depth)
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise Malformed(f"a {kind} is wrong ({error})") from error


def _decode_float(content: Any, depth: int) -> float:
    if content not in ("inf", "-inf", "nan"):
        raise ValueError(content)
    return float(content)


def _decode_list(content: Any, depth: int) -> list[Any]:
    if type(content) is not list:
        raise ValueError("not a list")
    return [decode(element, depth + 1) for element in content]


def _decode_constant(kind: str, content: Any, depth: int) -> Any:
    torch = dtypes.require_torch()
    # Not by getattr, which imports some submodules.
    constant = vars(torch).get(content)
    if not isinstance(constant, getattr(torch, kind)):
        raise ValueError(f"torch.{content} is not a {kind}")
    return constant


def _decode_enum(content: Any, depth: int) -> enum.Enum:
    name, member = content
    members = find_class(name, lambda found: issubclass(found, enum.Enum), "an enum").__members__
    return members[member]


def _decode_dataclass(content: Any, depth: int) -> Any:
    name, items = content
    made = find_class(name, dataclasses.is_dataclass, "a dataclass")
    values = {field: decode(value, depth + 1) for field, value in items}
    unknown = values.keys() - {field.name for field in dataclasses.fields(made) if field.init}
    if unknown:
        raise ValueError(f"{name} has no field {sorted(unknown)[0]!r}")
    return made(**values)


def _decode_namedtuple(content: Any, depth: int) -> Any:
    name, elements = content
    made = find_class(name, _is_namedtuple, "a namedtuple")
    return made(*_decode_list(elements, depth))


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


_DECODERS: dict[str, Callable[[Any, int], Any]] = {
    "float": _decode_float,
    "tuple": lambda content, depth: tuple(_decode_list(content, depth)),
    "size": lambda content, depth: dtypes.require_torch().Size(content),
    "dict": lambda content, depth: {
        decode(key, depth + 1): decode(value, depth + 1) for key, value in content
    },
    "device": lambda content, depth: dtypes.require_torch().device(content),
    **{kind: partial(_decode_constant, kind) for kind in _CONSTANTS},
    "enum": _decode_enum,
    "dataclass": _decode_dataclass,
    "namedtuple": _decode_namedtuple,
}
