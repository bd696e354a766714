"""Whether ranks pass on tensors of devices over NCCL, from device to device, and if not, why.

All ranks use it or none does: each says what speaks against it, and one objection counts for all.
Tensors then go through host memory, over the connections that carry everything else in any case.
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
"""Seconds at most that connecting takes before all ranks go on without."""
_MODES = ("auto", "on", "off")


class Objection(NamedTuple):
    """What speaks against NCCL on one rank."""

    reason: str
    is_chosen: bool
    """It is how the job was set up, and nothing that anybody should be warned of."""


def mode() -> str:
    """What the environment asks for, in any case of letters. Raises Invalid."""
    wanted = os.environ.get(VARIABLE, "auto") or "auto"
    if wanted.lower() not in _MODES:
        raise Invalid(f"{VARIABLE}={wanted}: {', '.join(_MODES)} are known")
    return wanted.lower()


def objection_of_group(group: ProcessGroup) -> str | None:
    """None for a group whose CUDA tensors torch sends over NCCL."""
    import torch.distributed as dist

    # As "cpu:gloo,cuda:nccl".
    config = dist.get_backend_config(group)
    backends = dict(item.partition(":")[::2] for item in config.split(","))
    backend = backends.get("cuda", "nothing")
    return None if backend == "nccl" else f"torch uses {backend} for the group's CUDA tensors"


def objection(of_group: str | None) -> Objection | None:
    """This rank's, if it has one. Raises Invalid."""
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
    """The CUDA device that a rank's process group was given, if it was."""
    return _number(getattr(group, "bound_device_id", None))


def device_for(devices: Sequence[int], bound: int | None, wanted: Any) -> int:
    """The device that a rank connects, of those that its tensors lie on; if there are none, of its
    own all the same, as two ranks cannot connect one.

    Args:
        bound: the process group's.
        wanted: as the call names it: where new tensors go.
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
