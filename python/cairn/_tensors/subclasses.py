"""Tensor subclasses that consist of inner tensors (``__tensor_flatten__``), as dicts.

A state contains such a tensor as the dict of its inner tensors, which are separate keys of the
step (``FQN.qdata``, ``FQN.scale``), and of a description in JSON under the key SUBCLASS_KEY, which
no dict of a user may contain:

    {"version": 1, "class": "torchao.quantization:Int8Tensor", "tensors": ["qdata", "scale"],
     "context": ..., "size": [...], "stride": [...], "dtype": "bfloat16"}

``context`` is described in cairn._tensors.plain_context. A load in place fills the inner tensors of
the caller; reading a step rebuilds the tensor if the class is allowed
(cairn._tensors.subclass_registry). Nothing is pickled.
"""

from __future__ import annotations

from typing import Any

from cairn._base import dtypes
from cairn._ranks.sharded import class_of
from cairn._tensors.subclass_registry import find_class, name_of_class, register
from cairn.errors import Corrupt, Invalid, refuse

SUBCLASS_KEY = "__tensor_subclass__"  # python/src/walk.h
_VERSION = 1
# The members that must be equal for a load in place.
_COMPARED = ("class", "tensors", "context", "size")
# They have __tensor_flatten__ too, but are saved in other ways, or refused.
_OTHERS = (
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"),
    ("torch.nested._internal.nested_tensor", "NestedTensor"),
    ("torch._subclasses.fake_tensor", "FakeTensor"),
)


def has_inner_tensors(kind: type) -> bool:
    """True for a subclass of torch.Tensor that is saved as its inner tensors."""
    if not hasattr(kind, "__tensor_flatten__") or not hasattr(kind, "__tensor_unflatten__"):
        return False
    others = (class_of(module, name) for module, name in _OTHERS)
    return not any(other is not None and issubclass(kind, other) for other in others)


def is_subclass(value: Any) -> bool:
    """True for a tensor that is saved as its inner tensors."""
    torch = dtypes.loaded_torch()
    return (
        torch is not None
        and isinstance(value, torch.Tensor)
        and type(value) not in (torch.Tensor, torch.nn.Parameter)
        and has_inner_tensors(type(value))
    )


def describe(value: Any, fqn: str) -> dict[str, Any]:
    """The dict that represents a tensor in a state. Raises Invalid if it cannot be described."""
    import json

    names, inner, context = _flattened(value, fqn)
    document = {
        "version": _VERSION,
        "class": name_of_class(type(value)),
        "tensors": names,
        "context": context,
        "size": list(value.size()),
        "stride": list(value.stride()),
        "dtype": str(value.dtype).removeprefix("torch."),
    }
    return {SUBCLASS_KEY: json.dumps(document, separators=(",", ":")), **inner}


def _flattened(value: Any, fqn: str) -> tuple[list[str], dict[str, Any], Any]:
    from cairn._tensors.plain_context import Unsupported, encode

    torch = dtypes.require_torch()
    kind = type(value).__qualname__
    names, context = value.__tensor_flatten__()
    inner = {name: getattr(value, name) for name in names}
    for name, tensor in inner.items():
        if not isinstance(name, str) or name == SUBCLASS_KEY or "." in name:
            raise refuse(fqn, f"a {kind} with an inner tensor named {name!r}", _OWN_PARTS)
        if not isinstance(tensor, torch.Tensor):
            raise refuse(fqn, f"a {kind} whose {name!r} is not a tensor", _OWN_PARTS)
    try:
        return list(inner), inner, encode(context)
    except Unsupported as error:
        what = f"a {kind} whose context {error}, which cannot be saved without pickle"
        raise refuse(fqn, what, _OWN_PARTS) from error


_OWN_PARTS = "save the plain tensors that it consists of instead"


def described(text: Any, fqn: str, step: int) -> dict[str, Any]:
    """The description of a stored tensor. Raises Corrupt if it is not one; Invalid if its version
    is newer."""
    import json

    try:
        document = json.loads(text)
        if type(document["version"]) is int and document["version"] > _VERSION:
            raise Invalid(
                f"the description of '{fqn}' is of version {document['version']}, newer than this "
                "package: upgrade it",
                key=fqn,
                step=step,
            )
        if _is_valid(document):
            return document
        reason = "a member is wrong"
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = repr(error)
    raise Corrupt(
        f"the description of the tensor subclass '{fqn}' in step {step} is damaged ({reason})",
        key=fqn,
        step=step,
    )


def _is_valid(document: dict[str, Any]) -> bool:
    is_list_of_names = type(document["tensors"]) is list and all(
        isinstance(name, str) for name in document["tensors"]
    )
    return (
        document["version"] == _VERSION
        and is_list_of_names
        and all(type(document[name]) is str for name in ("class", "dtype"))
        and all(_is_numbers(document[name]) for name in ("size", "stride"))
        and "context" in document
    )


def _is_numbers(values: Any) -> bool:
    return type(values) is list and all(type(n) is int and 0 <= n < 2**63 for n in values)


class Rebuilder:
    """Makes tensors from the dicts of a step.

    Args:
        is_part: whether only a part of the step was read. A dict that lacks inner tensors is then
            returned itself, and is otherwise Corrupt.
    """

    def __init__(self, step: int, is_part: bool) -> None:
        self._step = step
        self._is_part = is_part

    def __call__(self, items: dict[str, Any], fqn: str) -> Any:
        """The tensor with this FQN. Raises Invalid, or Corrupt if the dict is damaged."""
        from cairn._tensors.plain_context import Malformed, decode

        inner = dict(items)
        document = described(inner.pop(SUBCLASS_KEY), fqn, self._step)
        if self._is_part and not inner.keys() >= set(document["tensors"]):
            return items
        self._check_inner(inner, document, fqn)
        torch = dtypes.require_torch()
        try:
            context = decode(document["context"])
            kind = find_class(document["class"], _is_rebuildable, "a tensor subclass")
        except Malformed as error:
            raise self._corrupt(fqn, f"its context is damaged: {error}") from error
        except Invalid as error:
            key = f"{fqn}.{SUBCLASS_KEY}" if fqn else SUBCLASS_KEY
            way_out = f"or read its inner tensors with the pattern '!{key}'"
            raise Invalid(f"'{fqn}': {error}; {way_out}", key=fqn, step=self._step) from error
        size, stride = torch.Size(document["size"]), tuple(document["stride"])
        try:
            made = kind.__tensor_unflatten__(inner, context, size, stride)
        except Exception as error:  # of any type: the class may be of another version
            raise Invalid(
                f"'{fqn}': {document['class']} cannot be rebuilt from what step {self._step} "
                f"contains ({error!r}): use the version of its library that saved the step",
                key=fqn,
                step=self._step,
            ) from error
        if not isinstance(made, kind) or made.size() != size:
            raise self._corrupt(fqn, "its inner tensors do not fit its shape")
        return made

    def _check_inner(self, inner: dict[str, Any], document: dict[str, Any], fqn: str) -> None:
        torch = dtypes.require_torch()
        for name in document["tensors"]:
            if name not in inner:
                raise self._corrupt(fqn, f"it lacks the inner tensor {name!r}")
            if not isinstance(inner[name], torch.Tensor):
                raise self._corrupt(fqn, f"its {name!r} is not a tensor")
        extra = inner.keys() - set(document["tensors"])
        if extra:
            name = sorted(extra, key=str)[0]
            raise self._corrupt(fqn, f"it has {name!r}, which is not part of it")

    def _corrupt(self, fqn: str, why: str) -> Corrupt:
        return Corrupt(
            f"the tensor subclass '{fqn}' in step {self._step} is damaged: {why}",
            key=fqn,
            step=self._step,
        )


def rebuilt_flat(leaves: dict[str, Any], rebuild: Rebuilder) -> dict[str, Any]:
    """A flat state with a tensor in place of the leaves that it consists of."""
    dicts: dict[str, dict[str, Any]] = {
        fqn: {} for fqn, _, name in (key.rpartition(".") for key in leaves) if name == SUBCLASS_KEY
    }
    result: dict[str, Any] = {}
    for key, leaf in leaves.items():
        fqn, _, name = key.rpartition(".")
        if fqn in dicts:
            dicts[fqn][name] = leaf
            result[fqn] = None  # keeps the position
        else:
            result[key] = leaf
    # From the inside to the outside: an inner tensor may be a subclass itself.
    for fqn in sorted(dicts, key=len, reverse=True):
        made = rebuild(dicts[fqn], fqn)
        parent, _, name = fqn.rpartition(".")
        if fqn and parent in dicts:
            dicts[parent][name] = made
            del result[fqn]
        elif made is dicts[fqn]:
            del result[fqn]
            result.update((f"{fqn}.{name}" if fqn else name, leaf) for name, leaf in made.items())
        else:
            result[fqn] = made
    return result


def has_form(value: Any, document: dict[str, Any]) -> bool:
    """Whether a value is a tensor of this description, except for its strides."""
    import json

    if not is_subclass(value):
        return False
    ours = json.loads(describe(value, "")[SUBCLASS_KEY])
    return all(document[name] == ours[name] for name in _COMPARED)


def check_same(stored: Any, given: str, fqn: str, step: int) -> None:
    """Raises Invalid if a stored description does not fit the tensor to fill."""
    import json

    theirs, ours = described(stored, fqn, step), json.loads(given)
    for name in _COMPARED:
        if theirs[name] != ours[name]:
            raise Invalid(
                f"'{fqn}' is a {theirs['class']} in step {step} whose {name} is {theirs[name]}, "
                f"but that of the {ours['class']} in the target is {ours[name]}: make both the "
                "same, or use read()",
                key=fqn,
                step=step,
            )


def with_inner(like: Any, inner: dict[str, Any]) -> Any:
    """A tensor of the class and with the context of another one, around other inner tensors."""
    torch = dtypes.require_torch()
    names, context = like.__tensor_flatten__()
    tensors = {name: inner[name] for name in names}
    made = type(like).__tensor_unflatten__(tensors, context, like.size(), like.stride())
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=like.requires_grad)
    return made.requires_grad_() if like.requires_grad else made


def _is_rebuildable(kind: type) -> bool:
    return issubclass(kind, dtypes.require_torch().Tensor) and has_inner_tensors(kind)


def register_tensor_subclass(tensor_class: type, *context_classes: type) -> type:
    """Allows ``Store.read`` and ``CairnReader`` to rebuild tensors of a class in this process.

    Classes that ``torch.serialization.add_safe_globals`` has registered, and the quantized tensors
    and optimizer states of torchao, are allowed without this call. It may be used as a decorator.

    Threads: may be called from any thread.

    Args:
        tensor_class: a class with ``__tensor_flatten__`` and ``__tensor_unflatten__``.
        context_classes: enums, dataclasses and namedtuples that its context contains. They are
            created by their name and fields.

    Returns ``tensor_class``. Raises Invalid if it has no such methods; TypeError for something else
    than classes.
    """
    if isinstance(tensor_class, type) and not _is_rebuildable(tensor_class):
        raise Invalid(
            f"{tensor_class.__qualname__} is not a tensor subclass with __tensor_flatten__ and "
            "__tensor_unflatten__"
        )
    register(tensor_class, *context_classes)
    return tensor_class
