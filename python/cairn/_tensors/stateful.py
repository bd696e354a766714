"""Objects that return and accept their state as a dict: modules, optimizers, or a user's own.

As in torch.distributed.checkpoint, only the state itself and the values of its top-level dict may
be such objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from cairn._base import dtypes

EXTRA_STATE = "_extra_state"

# Prefixes that wrappers add to the names of parameters, but not to the keys of state dicts.
_WRAPPER_NAMES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


AT_TOP = "make it a value of the top-level dict, whose keys may have dots, or pass its state_dict()"
"""What to do with such an object in a nested dict."""


def is_stateful(value: Any) -> bool:
    """True for objects with both ``state_dict`` and ``load_state_dict``, as torch's Stateful."""
    if isinstance(value, (type, dict)):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    )


class StatefulAdapter:
    """A state in which each Stateful is replaced by its state dict.

    Attributes:
        state: the nested state; the same object that was given if it contains no Stateful.
        frozen: FQNs of the parameters that are excluded because they require no gradient.
    """

    def __init__(self, state: Any, prefix: str = "", ignore_frozen: bool = False) -> None:
        self._objects: list[_Object] = []
        self.frozen: list[str] = []
        self._ignore_frozen = ignore_frozen
        self._given, self._prefix = state, prefix
        self._taken = self._take_all(state, prefix)
        self._set_state()

    def objects(self) -> Iterator[tuple[Any, Any, str]]:
        """The objects, their state dicts and FQNs."""
        return ((one.value, one.state, one.fqn) for one in self._objects)

    def buffers(self) -> set[str]:
        """FQNs of the buffers of modules."""
        return {
            f"{one.fqn}.{name_of(name)}" if one.fqn else name_of(name)
            for one in self._objects
            if is_module(one.value)
            for full, _ in one.value.named_buffers(remove_duplicate=False)
            for name in _names_in_state(full)
        }

    def replace_states(self, replace: Callable[[Any, Any, str], Any]) -> None:
        """Replaces each state dict by the result for (object, state dict, FQN)."""
        for one in self._objects:
            one.state = replace(one.value, one.state, one.fqn)
            if one.value is self._given:
                self._taken = one.state
            else:
                self._taken[one.key] = one.state
        self._set_state()

    def load_into_objects(self) -> None:
        """Passes the filled state dicts to their objects, and copies the other values that a load
        has replaced to the caller's dict."""
        if self._taken is not self._given and isinstance(self._given, dict):
            for key, value in self._given.items():
                if not is_stateful(value):
                    self._given[key] = self._taken[key]
        for one in self._objects:
            # A state that is a tensor or a value was replaced in its container.
            filled = self.state[self._prefix] if self._prefix else self.state
            state = filled if one.value is self._given else filled[one.key]
            if one.was_meta:
                one.value.load_state_dict(_with_ties(one.value, state), assign=True)
            elif self._ignore_frozen and is_module(one.value):
                one.value.load_state_dict(state, strict=False)
            else:
                one.value.load_state_dict(state)

    def _set_state(self) -> None:
        self.state = {self._prefix: self._taken} if self._prefix else self._taken

    def _take_all(self, state: Any, prefix: str) -> Any:
        if is_stateful(state):
            return self._take(state, prefix, None)
        if type(state) not in (dict, OrderedDict) or not _has_stateful(state):
            return state  # other kinds of dicts are refused
        # state_dict() may be a collective, and the order of keys may differ between ranks.
        taken = {
            key: self._take(value, f"{prefix}.{name_of(key)}" if prefix else name_of(key), key)
            for key, value in sorted(state.items(), key=lambda item: str(item[0]))
            if is_stateful(value)
        }
        return type(state)((key, taken.get(key, value)) for key, value in state.items())

    def _take(self, value: Any, fqn: str, key: Any) -> Any:
        state_dict = value.state_dict()
        if self._ignore_frozen and is_module(value):
            state_dict = dict(state_dict)
            for name in _frozen_names(value) & state_dict.keys():
                del state_dict[name]
                self.frozen.append(f"{fqn}.{name_of(name)}" if fqn else name_of(name))
        was_meta = is_module(value) and any(map(_is_meta, state_dict.values()))
        self._objects.append(_Object(value, state_dict, fqn, key, was_meta))
        return state_dict


class _Object:
    """A Stateful, and its state dict.

    Attributes:
        fqn, key: where it is in a step, and in the state of the caller.
        was_meta: whether parts of it are on the meta device.
    """

    def __init__(self, value: Any, state: Any, fqn: str, key: Any, was_meta: bool) -> None:
        self.value, self.state = value, state
        self.fqn, self.key, self.was_meta = fqn, key, was_meta


def name_of(key: Any) -> str:
    """The name of a key in FQNs."""
    return str(key).replace("\\", "\\\\")


def _has_stateful(state: dict) -> bool:
    """True if a value of the dict is a Stateful. Flat state dicts have very many values, nearly all
    of them tensors."""
    torch = dtypes.loaded_torch()
    plain = {int, float, bool, str} | ({torch.Tensor, torch.nn.Parameter} if torch else set())
    if plain.issuperset(map(type, state.values())):
        return False
    return any(map(is_stateful, state.values()))


def is_module(value: Any) -> bool:
    torch = dtypes.loaded_torch()
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_meta(value: Any) -> bool:
    device = getattr(value, "device", None)
    return getattr(device, "type", None) == "meta"


def _with_ties(module: Any, state: Any) -> Any:
    """The state to assign to the module. torch makes a Parameter of each tensor that it assigns,
    and leaves Parameters as they are, so parameters that are tied get one."""
    names: dict[int, list[str]] = {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if name in state:
            names.setdefault(id(parameter), []).append(name)
    for first, *others in names.values():
        if others:
            make = dtypes.require_torch().nn.Parameter
            made = make(state[first], parameters[first].requires_grad)
            state.update(dict.fromkeys((first, *others), made))
    return state


def _frozen_names(module: Any) -> set[str]:
    names = set()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            names |= _names_in_state(name)
    return names


def _names_in_state(name: str) -> set[str]:
    """Of a parameter or buffer: some wrappers keep their prefix in the state dict."""
    without = name
    for wrapper in _WRAPPER_NAMES:
        without = without.replace(wrapper, "")
    return {name, without}
