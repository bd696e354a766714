"""The allow-list of classes that a stored tensor subclass may be rebuilt from, by name.

A class is allowed if the process has registered it (``cairn.torch.register_tensor_subclass``), if
torch may unpickle it (``torch.serialization.add_safe_globals``), or if it is one of the classes of
torchao below. Only the modules of the latter are imported, when a step needs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from cairn._base import dtypes
from cairn.errors import Invalid

_registered: dict[str, type] = {}

_WORKFLOWS = "torchao.quantization.quantize_.workflows"
_MX = "torchao.prototype.mx_formats"
_TORCHAO = {
    "torchao.quantization": {
        *("Float8Tensor", "Int4PlainInt32Tensor", "Int4PreshuffledTensor", "Int4Tensor"),
        *("Int4TilePackedTo4dTensor", "Int8Tensor", "IntxOpaqueTensor", "IntxUnpackedToInt8Tensor"),
    },
    "torchao.quantization.granularity": {
        *("PerAxis", "PerBlock", "PerGroup", "PerRow", "PerTensor", "PerToken"),
    },
    "torchao.quantization.quant_primitives": {"MappingType", "ZeroPointDomain"},
    "torchao.quantization.quantize_.common.kernel_preference": {"KernelPreference"},
    f"{_WORKFLOWS}.float8.float8_packing_format": {"Float8PackingFormat"},
    f"{_WORKFLOWS}.float8.float8_tensor": {"QuantizeTensorToFloat8Kwargs"},
    f"{_WORKFLOWS}.int8.int8_tensor": {"QuantizeTensorToInt8Kwargs"},
    f"{_WORKFLOWS}.intx.intx_packing_format": {"IntxPackingFormat"},
    f"{_WORKFLOWS}.intx.intx_unpacked_to_int8_tensor": {
        "IntxUnpackedToInt8TensorActivationQuantization"
    },
    "torchao.float8.inference": {"Float8MMConfig"},
    "torchao.optim.subclass_4bit": {"OptimState4bit"},
    "torchao.optim.subclass_8bit": {"OptimState8bit"},
    "torchao.optim.subclass_fp8": {"OptimStateFp8"},
    f"{_MX}.config": {"ScaleCalculationMode"},
    f"{_MX}.mx_tensor": {"MXTensor", "QuantizeTensorToMXKwargs"},
    f"{_MX}.nvfp4_tensor": {"NVFP4Tensor", "QuantizeTensorToNVFP4Kwargs"},
}


def name_of_class(kind: type) -> str:
    """The name of a class in stored steps: ``MODULE:NAME``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def register(*classes: type) -> None:
    """Adds classes to the allow-list of this process. Raises TypeError for anything else."""
    for kind in classes:
        if not isinstance(kind, type):
            raise TypeError(f"{kind!r} is not a class")
    _registered.update((name_of_class(kind), kind) for kind in classes)


def find_class(name: Any, is_wanted: Callable[[type], bool], what: str) -> Any:
    """The class with this name. Raises Invalid if it is not allowed, or is not wanted.

    ``what``: what is wanted, for the error.
    """
    kind = None if not isinstance(name, str) else _registered.get(name)
    if kind is None and isinstance(name, str):
        kind = _of_torchao(name) or _safe_globals().get(name)
    if kind is None:
        raise Invalid(
            f"the class {name!r} is not on the allow-list of tensor subclasses: if you trust it, "
            "pass it to cairn.torch.register_tensor_subclass or torch.serialization."
            "add_safe_globals first"
        )
    if not is_wanted(kind):
        raise Invalid(f"the class {name!r} is not {what}")
    return kind


def _safe_globals() -> dict[str, type]:
    allowed = dtypes.require_torch().serialization.get_safe_globals()
    # Some are (class, name in pickles).
    classes = (one[0] if isinstance(one, tuple) else one for one in allowed)
    return {name_of_class(one): one for one in classes if isinstance(one, type)}


def _of_torchao(name: str) -> type | None:
    module, _, class_name = name.partition(":")
    if class_name not in _TORCHAO.get(module, ()):
        return None
    try:
        found = getattr(importlib.import_module(module), class_name, None)
    except ImportError as error:
        raise Invalid(
            f"the class {name!r} cannot be imported ({error}): install the version of torchao that "
            "the step was saved with"
        ) from error
    return found if isinstance(found, type) else None
