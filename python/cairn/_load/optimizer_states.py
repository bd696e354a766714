"""The state dicts of optimizers: which entries are those of an optimizer's own parameters, and what
of a step an optimizer cannot use, which it would notice only after the load has changed the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cairn._base import dtypes
from cairn._tensors.stateful import name_of
from cairn.errors import Invalid

_OTHER_SHAPES = ("Adafactor", "LBFGS")
"""The optimizers of torch of which a tensor may have another shape than its parameter."""


class Entry(NamedTuple):
    """What a step has of one parameter of an optimizer."""

    key: Any
    """Its key in the state dict of the optimizer."""
    parameter: Any
    """None: the optimizer does not show it."""
    has_its_shape: bool
    """Whether all tensors except scalars have the shape of the parameter."""

    def check_shape(self, fqn: str, step: int, stored: tuple[int, ...], old: Any) -> None:
        """Raises Invalid for a tensor that is that of another parameter. `old`: what the optimizer
        has in its place."""
        own = tuple(getattr(self.parameter, "shape", stored))
        has_its_shape = self.has_its_shape or getattr(old, "shape", None) == own
        if stored not in ((), own) and has_its_shape:
            raise Invalid(
                f"'{fqn}' has the shape {list(stored)} in step {step}, but its parameter has "
                f"{list(own)}: make the model that was saved, or pass strict=False",
                key=fqn,
                step=step,
            )


def has_groups(state: Any) -> bool:
    """Whether a state dict is that of an optimizer."""
    return isinstance(state, dict) and isinstance(state.get("param_groups"), list)


def entries_of(
    value: Any, state: dict, new: dict, stored: Callable[[int], Any]
) -> dict[Any, Entry]:
    """What a step has of the parameters of an optimizer, by the keys in the step. As in torch,
    parameters match by their places in the groups.

    Args:
        new: what the step has in place of `state`, with the positions of leaves, whose values
            `stored` returns.
    """
    states = new.get("state")
    if not isinstance(states, dict):
        return {}
    keys = [stored(key) for key in _keys(new) if isinstance(key, int)] or _keys(state)
    groups = getattr(value, "param_groups", None)
    parameters = [one for group in groups or () for one in group["params"]] or [None] * len(keys)
    has_its_shape = _is_of_torch(value) and type(value).__name__ not in _OTHER_SHAPES
    # An imported step can have texts in place of the numbers.
    by_text = {
        name_of(key): Entry(key, parameter, has_its_shape)
        for key, parameter in zip(keys, parameters)
    }
    return {key: by_text[name_of(key)] for key in states if name_of(key) in by_text}


def check_groups(value: Any, groups: list[dict], fqn: str, step: int) -> None:
    """Raises Invalid if an optimizer cannot continue with the groups of a step."""
    torch = dtypes.loaded_torch()
    if torch is None or not isinstance(value, torch.optim.Optimizer):
        return
    has_hooks = bool(getattr(value, "_optimizer_load_state_dict_pre_hooks", None))
    if has_hooks or not all("params" in group for group in groups):
        return  # it changes the groups, or has groups of its own form
    own, new = ([len(group["params"]) for group in each] for each in (value.param_groups, groups))
    if own != new:
        raise Invalid(
            f"the groups of '{fqn}' have {own} parameters, but {new} in step {step}: make the "
            f"optimizer that was saved, or use Store.load with keys='!{fqn}'",
            key=fqn,
            step=step,
        )
    # Flags may be newer than the step, and have defaults.
    options = [name for name, one in value.defaults.items() if type(one) not in (bool, type(None))]
    lacking = [name for name in options if any(name not in group for group in groups)]
    if lacking and _is_of_torch(value):
        raise Invalid(
            f"'{fqn}' is of the kind {type(value).__name__}, but in step {step} it is of another "
            f"kind, without '{lacking[0]}': make the optimizer that was saved, or use "
            f"Store.load with keys='!{fqn}'",
            key=fqn,
            step=step,
        )


def _keys(state: dict) -> list[Any]:
    """The keys of the parameters in the groups of a state dict, or their positions in a step."""
    groups = state.get("param_groups", ())
    lists = [group.get("params") for group in groups if isinstance(group, dict)]
    return [key for keys in lists if isinstance(keys, list) for key in keys]


def _is_of_torch(value: Any) -> bool:
    return f"{type(value).__module__}.".startswith("torch.optim.")
