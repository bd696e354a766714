"""Copies a state with all of its structure, and its tensors into host copies.

The structure is pickled into memory and unpickled. So containers and objects are rebuilt from the
parts that their `__reduce_ex__` returns, and sharing and cycles are preserved. Nothing passes
through the pickle that is not structure: the pickler refers to tensors, which `Copier.tensor`
copies, to objects with a `__deepcopy__`, which copy themselves, and to immutable values.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import types
import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cairn._ranks.sharded import arrived
from cairn._tensors.host_copies import Round
from cairn.errors import Error, Invalid

# Immutable values, and objects that are unique in the process. They are not copied.
_KEPT_TYPES = (
    type(None), bool, int, float, complex, str, bytes, type, type(...), type(NotImplemented),
    types.BuiltinFunctionType, types.CodeType, types.FunctionType, types.ModuleType,
    property, weakref.ref, torch.device, torch.dtype, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip


class Copier:
    """Copies one state; each staging has its own object. Requires that autograd is off. Threads:
    one thread only."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._state: Any = None
        # Id to (original, copy). The originals are kept alive, so that ids remain unique.
        self._memo: dict[int, tuple[Any, Any]] = {}
        self._unique = (type, *_process_wide_types())

    def copy(self, state: Any) -> Any:
        """Copies a state.

        Raises:
            Invalid: something in it cannot be copied; the message contains its path.
        """
        self._state = state
        return self._copy(state)

    def _copy(self, value: Any) -> Any:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self)
        try:
            pickler.dump(value)
            return _Unpickler(io.BytesIO(buffer.getbuffer()), pickler.referred).load()
        except Error:
            raise
        except Exception as error:
            kind = _name_of(pickler.last)
            text = f"of type {kind}, which cannot be copied: exclude it ({error})"
            raise self._refuse(pickler.last, text) from error

    def find(self, value: Any) -> tuple[Any, Any] | None:
        """The value and what takes its place, if it is not pickled; None if it is."""
        if isinstance(value, torch.Tensor):
            return value, self._once(value)
        if type(value) in _KEPT_TYPES or isinstance(value, self._unique):
            return value, value
        if hasattr(value, "__deepcopy__"):
            if id(value) not in self._memo:
                with _InnerTensors(self):
                    self._memo[id(value)] = (value, value.__deepcopy__({}))
            return self._memo[id(value)]
        return None

    def _once(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._memo:
            self._memo[id(tensor)] = (tensor, self.tensor(tensor))
        return self._memo[id(tensor)][1]

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the same type with its data in host copies.

        Views, offsets and strides are preserved, and tensors that share a storage share its copy.
        Wrappers (DTensor, and other classes with `__tensor_flatten__`) and ShardedTensors are
        rebuilt around copies of their inner tensors. A tensor on the meta device is returned
        itself. Sparse, quantized and MKL-DNN tensors are cloned, without a copy that is reused.
        """
        tensor = arrived(tensor)
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
                tensor,
                "a tensor without memory: it was freed, or its type "
                f"({_name_of(tensor)}) hides it; exclude it, or restore it",
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
            inner[name] = self._once(value) if isinstance(value, torch.Tensor) else value
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
            Shard(self._once(shard.tensor), shard.metadata) for shard in tensor.local_shards()
        ]
        return copied

    def _attributes(self, tensor: torch.Tensor, copied: torch.Tensor) -> None:
        """Copies the attributes that a subclass or a user has added to a tensor."""
        self._memo[id(tensor)] = (tensor, copied)  # an attribute may refer to it
        for name, value in _attributes_of(tensor):
            if not hasattr(copied, name):
                setattr(copied, name, self._copy(value))

    def _refuse(self, value: Any, what: str) -> Invalid:
        where = _path_to(value, self._state, set()) or ""
        return Invalid(f"state{where} is {what}", key=where)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, copier: Copier) -> None:
        super().__init__(file, protocol=5)
        self._copier = copier
        self.referred: list[tuple[Any, Any]] = []
        """Values that are not pickled, each with its copy. They are kept alive together."""
        self.last: Any = None
        """The value that is being pickled."""

    def persistent_id(self, obj: Any) -> int | None:
        self.last = obj
        found = self._copier.find(obj)
        if found is None:
            return None
        self.referred.append(found)
        return len(self.referred) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, referred: list[tuple[Any, Any]]) -> None:
        super().__init__(file)
        self._referred = referred

    def persistent_load(self, pid: Any) -> Any:
        return self._referred[pid][1]


class _InnerTensors(TorchFunctionMode):
    """Redirects plain tensors to the copier while an object copies itself (`__deepcopy__`)."""

    def __init__(self, copier: Copier) -> None:
        super().__init__()
        self._copier = copier

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            return self._copier.find(args[0])[1]
        return func(*args, **(kwargs or {}))


def _path_to(target: Any, value: Any, seen: set[int]) -> str | None:
    """Where an object is in a state, such as ``['model'][0]``; None if it is not found."""
    if value is target:
        return ""
    if id(value) in seen:
        return None
    seen.add(id(value))
    if isinstance(value, dict):
        children = [(f"[{key!r}]", child) for key, child in value.items()]
    elif isinstance(value, (list, tuple)):
        children = [(f"[{i}]", child) for i, child in enumerate(value)]
    else:
        children = [(f".{name}", child) for name, child in getattr(value, "__dict__", {}).items()]
    for step, child in children:
        rest = _path_to(target, child, seen)
        if rest is not None:
            return step + rest
    return None


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
