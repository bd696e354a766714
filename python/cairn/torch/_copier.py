"""Copies a state with all of its structure, and its tensors into host copies.

Containers and objects are copied as `copy.deepcopy` copies them: by their `__deepcopy__`, or from
the parts that their `__reduce_ex__` returns. An object that occurs twice is copied once, so that
sharing and cycles are preserved. Only tensors are treated differently: see `Copier.tensor`.
"""

from __future__ import annotations

import copyreg
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cairn._tensors.host_copies import Round
from cairn.errors import Error, Invalid

# Immutable values, and objects that are unique in the process. They are not copied.
_KEPT_TYPES = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type,
        range,
        slice,
        property,
        type(...),
        type(NotImplemented),
        types.BuiltinFunctionType,
        types.CodeType,
        types.FunctionType,
        types.ModuleType,
        re.Pattern,
        weakref.ref,
        torch.device,
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch.Size,
    }
)


class Copier:
    """Copies one state; each staging has its own object. Requires that autograd is off.

    Threads: one thread only.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        # Id to (original, copy). The originals are kept alive, so that ids remain unique.
        self._memo: dict[int, tuple[Any, Any]] = {}
        self._path: list[str] = []

    def copy(self, value: Any) -> Any:
        """Copies any value; returns `value` itself if it is immutable.

        Raises:
            Invalid: something in it cannot be copied; the message contains its path.
        """
        kind = type(value)
        if kind in _KEPT_TYPES:
            return value
        known = self._memo.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, torch.Tensor):
            return self._remember(value, self.tensor(value))
        follow = _FOLLOWERS.get(kind)
        if follow is not None:
            return follow(self, value)
        if issubclass(kind, type) or isinstance(value, _process_wide_types()):
            return value
        return self._object(value)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the same type with its data in host copies.

        Views, offsets and strides are preserved, and tensors that share a storage share its copy.
        Wrappers (DTensor, and other classes with `__tensor_flatten__`) and ShardedTensors are
        rebuilt around copies of their inner tensors. A tensor on the meta device is returned
        itself. Sparse, quantized and MKL-DNN tensors are cloned, without a copy that is reused.
        """
        if _is_pending(tensor):
            tensor = tensor.trigger_wait()
        if hasattr(tensor, "__tensor_flatten__"):
            copied = self._wrapper(tensor)
        elif hasattr(tensor, "local_shards"):
            copied = self._sharded(tensor)
        elif tensor.is_meta:
            return tensor
        elif tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            copied = tensor.detach().to("cpu", copy=True)
        else:
            copied = self._strided(tensor)
        self._attributes(tensor, copied)
        return copied

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        if plain.numel() > 0 and _has_no_data(plain):
            raise self._refuse(
                "a tensor without memory: it was freed, or its type "
                f"({_name_of(tensor)}) hides it; exclude it, or restore it"
            )
        copied = self._round.tensor(plain)
        if plain.is_conj():
            copied = copied.conj()
        if plain.is_neg():
            copied = torch._neg_view(copied)
        if type(tensor) is torch.nn.Parameter:
            return torch.nn.Parameter(copied, tensor.requires_grad)
        if type(tensor) is not torch.Tensor:
            copied = copied.as_subclass(type(tensor))
        return copied

    def _wrapper(self, tensor: Any) -> torch.Tensor:
        names, context = tensor.__tensor_flatten__()
        inner = {}
        for name in names:
            value = getattr(tensor, name)
            # Some of these are not tensors, such as the mesh of a DTensor.
            inner[name] = self._at(f".{name}", value) if isinstance(value, torch.Tensor) else value
        return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())

    def _sharded(self, tensor: Any) -> torch.Tensor:
        from torch.distributed._shard.sharded_tensor import Shard

        properties = tensor.metadata().tensor_properties
        copied = type(tensor).__new__(
            type(tensor),
            tensor.sharding_spec(),
            tensor.metadata().size,
            dtype=properties.dtype,
            layout=properties.layout,
            pin_memory=False,
            requires_grad=properties.requires_grad,
        )
        # Metadata, process group and so on are shared; only the shards are copied.
        vars(copied).update(vars(tensor))
        copied._local_shards = [
            Shard(self._at(f".shard[{i}]", shard.tensor), shard.metadata)
            for i, shard in enumerate(tensor.local_shards())
        ]
        return copied

    def _attributes(self, tensor: torch.Tensor, copied: torch.Tensor) -> None:
        """Copies the attributes that a subclass or a user has added to a tensor."""
        self._remember(tensor, copied)  # an attribute may refer to it
        for name, value in _attributes_of(tensor):
            if not hasattr(copied, name):
                setattr(copied, name, self._at(f".{name}", value))

    def _list(self, value: list) -> list:
        copied: list = self._remember(value, [])
        for i, item in enumerate(value):
            copied.append(self._at(f"[{i}]", item))
        return copied

    def _tuple(self, value: tuple) -> tuple:
        items = [self._at(f"[{i}]", item) for i, item in enumerate(value)]
        if id(value) in self._memo:  # the tuple contains itself
            return self._memo[id(value)][1]
        if all(item is old for item, old in zip(items, value)):
            return value
        return self._remember(value, tuple(items))

    def _dict(self, value: dict) -> dict:
        copied: dict = self._remember(value, {})
        for key, item in value.items():
            copied[self.copy(key)] = self._at(f"[{key!r}]", item)
        return copied

    def _method(self, value: types.MethodType) -> types.MethodType:
        return types.MethodType(value.__func__, self._at(".__self__", value.__self__))

    def _object(self, value: Any) -> Any:
        deepcopy = getattr(value, "__deepcopy__", None)
        try:
            if deepcopy is not None:
                with _InnerTensors(self):
                    return self._remember(value, deepcopy({}))
            parts = _parts_of(value)
            return value if parts is None else self._rebuild(value, parts)
        except Error:
            raise
        except Exception as error:
            raise self._refuse(
                f"of type {_name_of(value)}, which cannot be copied: exclude it ({error})"
            ) from error

    def _rebuild(self, value: Any, parts: tuple[Any, ...]) -> Any:
        """Rebuilds an object from copies of the parts that its `__reduce_ex__` returned."""
        make, arguments, state, items, pairs, set_state = (*parts, None, None, None, None)[:6]
        made = make(*(self._at(f".<{i}>", argument) for i, argument in enumerate(arguments)))
        self._remember(value, made)
        if state is not None:
            _set_state(made, self._state(state), set_state)
        for i, item in enumerate(items or ()):
            made.append(self._at(f"[{i}]", item))
        for key, item in pairs or ():
            made[self.copy(key)] = self._at(f"[{key!r}]", item)
        return made

    def _state(self, state: Any) -> Any:
        # Without the memo: the dict of attributes belongs to this object only.
        if type(state) is dict:
            return {name: self._at(f".{name}", value) for name, value in state.items()}
        if type(state) is tuple and len(state) == 2 and isinstance(state[1], dict):
            return self._state(state[0]), self._state(state[1])
        return self.copy(state)

    def _at(self, step: str, value: Any) -> Any:
        self._path.append(step)
        copied = self.copy(value)
        self._path.pop()
        return copied

    def _remember(self, value: Any, copied: Any) -> Any:
        self._memo[id(value)] = (value, copied)
        return copied

    def _refuse(self, what: str) -> Invalid:
        where = "".join(self._path)
        return Invalid(f"state{where} is {what}", key=where)


_FOLLOWERS: dict[type, Callable[[Copier, Any], Any]] = {
    dict: Copier._dict,
    list: Copier._list,
    tuple: Copier._tuple,
    types.MethodType: Copier._method,
}


class _InnerTensors(TorchFunctionMode):
    """Redirects plain tensors to the copier while an object copies itself (`__deepcopy__`)."""

    def __init__(self, copier: Copier) -> None:
        super().__init__()
        self._copier = copier

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            return self._copier.copy(args[0])
        return func(*args, **(kwargs or {}))


def _parts_of(value: Any) -> tuple[Any, ...] | None:
    """The result of `__reduce_ex__`, or None for an object that is not copied."""
    reducer = copyreg.dispatch_table.get(type(value))
    parts = value.__reduce_ex__(4) if reducer is None else reducer(value)
    return None if isinstance(parts, str) else parts


def _set_state(made: Any, state: Any, set_state: Callable[[Any, Any], None] | None) -> None:
    if set_state is not None:
        set_state(made, state)
    elif hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        if attributes:
            vars(made).update(attributes)
        for name, value in (slots or {}).items():
            setattr(made, name, value)


def _is_pending(tensor: torch.Tensor) -> bool:
    """True for the result of a collective that may still be running."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return module is not None and isinstance(tensor, module.AsyncCollectiveTensor)


def _attributes_of(tensor: torch.Tensor) -> list[tuple[str, Any]]:
    """The Python attributes of a tensor, in its dict and in the slots of its class."""
    slots = [name for name in copyreg._slotnames(type(tensor)) if hasattr(tensor, name)]
    return list(vars(tensor).items()) + [(name, getattr(tensor, name)) for name in slots]


def _has_no_data(tensor: torch.Tensor) -> bool:
    try:
        return tensor.untyped_storage().nbytes() == 0
    except (NotImplementedError, RuntimeError):
        return True


def _process_wide_types() -> tuple[type, ...]:
    """Process-wide objects that a copy continues to use: meshes and process groups."""
    if not torch.distributed.is_available():
        return ()
    return (torch.distributed.DeviceMesh, torch.distributed.ProcessGroup)


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
