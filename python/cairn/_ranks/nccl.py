"""Whether ranks send tensors over NCCL, from device to device, and if not, why.

All ranks use NCCL or none does: an objection of one rank applies to all. Without NCCL, tensors go
through host memory, over the connections that all other messages use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn
from cairn.errors import Error, Invalid

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

VARIABLE = "CAIRN_NCCL"
CONNECT_TIMEOUT = 90.0
"""Maximum number of seconds for connecting, after which all ranks continue without NCCL."""
_MODES = ("auto", "on", "off")


class Objection(NamedTuple):
    """Why one rank cannot or must not use NCCL."""

    reason: str
    is_chosen: bool
    """True if the job was configured this way, so that no warning is needed."""


def mode() -> str:
    """The mode in the environment, which is case-insensitive. Raises Invalid for an unknown one."""
    wanted = os.environ.get(VARIABLE, "auto") or "auto"
    if wanted.lower() not in _MODES:
        raise Invalid(f"{VARIABLE}={wanted}: use one of {', '.join(_MODES)}")
    return wanted.lower()


def objection_of_group(group: ProcessGroup) -> str | None:
    """Why the group rules out NCCL; None if torch sends its CUDA tensors over NCCL."""
    import torch.distributed as dist

    # For example "cpu:gloo,cuda:nccl".
    config = dist.get_backend_config(group)
    backends = dict(item.partition(":")[::2] for item in config.split(","))
    backend = backends.get("cuda", "nothing")
    return None if backend == "nccl" else f"torch uses {backend} for the group's CUDA tensors"


def objection(of_group: str | None) -> Objection | None:
    """The objection of this rank, if any. Raises Invalid for an unknown mode."""
    wanted = mode()
    if wanted == "off":
        return Objection(f"{VARIABLE}=off", True)
    if wanted == "auto" and of_group is not None:
        return Objection(f"{of_group}, and {VARIABLE}=on is not set", True)
    try:
        _cairn.describe_nccl()
    except Error as error:
        return Objection(str(error), False)
    return None


def bound_device(group: ProcessGroup) -> int | None:
    """The CUDA device that the process group is bound to, if any."""
    return _number(getattr(group, "bound_device_id", None))


def device_for(devices: Sequence[int], bound: int | None, wanted: Any) -> int:
    """The device that a rank connects: one of the devices of its tensors.

    A rank without tensors on devices also needs a distinct device, because two ranks cannot connect
    the same one.

    Args:
        bound: the device of the process group, if any.
        wanted: the device that the call names for new tensors, if any.
    """
    import torch

    if len(devices) == 1:
        return devices[0]
    for likely in (bound, _number(wanted), torch.cuda.current_device()):
        if likely is not None and (not devices or likely in devices):
            return likely
    return devices[0]


def _number(device: Any) -> int | None:
    import torch

    if device is None:
        return None
    made = torch.device(device)
    return made.index if made.type == "cuda" else None
