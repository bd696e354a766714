"""The public call that allows the classes of stored tensor subclasses."""

from __future__ import annotations

import torch

from cairn._tensors.subclass_registry import register
from cairn._tensors.subclasses import has_inner_tensors
from cairn.errors import Invalid


def register_tensor_subclass(
    tensor_class: type[torch.Tensor], *context_classes: type
) -> type[torch.Tensor]:
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
    if not isinstance(tensor_class, type):
        raise TypeError(f"{tensor_class!r} is not a class")
    if not issubclass(tensor_class, torch.Tensor) or not has_inner_tensors(tensor_class):
        raise Invalid(
            f"{tensor_class.__qualname__} is not a tensor subclass with __tensor_flatten__ and "
            "__tensor_unflatten__"
        )
    register(tensor_class, *context_classes)
    return tensor_class
