"""Loads by several ranks: which step they load, which keys no rank has, and which rank needs what.

Ranks may hold different keys, as stages of a pipeline do. A key of the step is unexpected if no
rank has it. Where one rank reads for others, it forwards a replicated tensor to the ranks that have
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn import _cairn
from cairn._base.steps import step_number
from cairn._load.load import Load
from cairn._ranks.ranks import Ranks
from cairn.errors import Invalid


def agree_on_step(ranks: Ranks, native: _cairn.Store, step: int | None) -> int | None:
    """The step to load: `step`, or the latest step that rank 0 sees. Collective.

    Raises Invalid if the ranks name different steps, NotFound if the store has none.
    """
    if ranks.world_size == 1:
        return step
    import json

    def encode_local() -> bytes:
        if step is not None:
            return json.dumps([step_number(step), True]).encode()
        steps = native.steps()
        # If there are no steps, `contents` raises NotFound.
        latest = steps[-1] if steps else native.contents(None, []).step
        return json.dumps([latest, False]).encode()

    replies = [json.loads(one) for one in ranks.exchange(encode_local)]
    number, is_given = replies[0]
    if any(one[1] != is_given or (is_given and one[0] != number) for one in replies):
        given = [one[0] if one[1] else None for one in replies]
        raise Invalid(f"ranks load different steps, by rank: {given}: give all ranks the same step")
    return number


def plan_together(ranks: Ranks, plan: Callable[[], Load], device: Any = None) -> Load:
    """This rank's load, checked against the loads of the other ranks. Collective.

    Args:
        plan: makes this rank's load.
        device: the device that the call names, if any.

    Raises on all ranks what ``plan()`` raises on one of them; Invalid for unexpected keys if the
    load is strict.
    """
    import json

    loads: list[Load] = []

    def encode_local() -> bytes:
        loads.append(plan())
        has_devices = bool(loads[0].requests.devices())
        return json.dumps([has_devices, loads[0].unexpected]).encode("utf-8", "surrogatepass")

    replies = [json.loads(one) for one in ranks.exchange(encode_local)]
    load = loads[0]
    if ranks.world_size > 1:
        unexpected_on_all = set(load.unexpected)
        for _, unexpected in replies:
            unexpected_on_all &= set(unexpected)
        load.unexpected = tuple(fqn for fqn in load.unexpected if fqn in unexpected_on_all)
    load.check_unexpected()
    if load.read_once and ranks.world_size > 1:
        _set_holders(ranks, load.requests)
        have_devices = any(has_devices for has_devices, _ in replies)
        load.by_nccl = ranks.over_nccl(load.requests.devices(), have_devices, device)
    return load


def _set_holders(ranks: Ranks, requests: _cairn.Requests) -> None:
    """Sets the ranks that need a replicated tensor, where not all ranks do."""
    import json
    import zlib

    local_fqns = sorted(requests.whole_fqns())

    def encode_local() -> bytes:
        return zlib.compress(json.dumps(local_fqns).encode("utf-8", "surrogatepass"))

    replies = ranks.exchange(encode_local)
    if len(set(replies)) == 1:
        return
    holders: dict[str, list[int]] = {}
    for rank, one in enumerate(replies):
        for fqn in json.loads(zlib.decompress(one)):
            holders.setdefault(fqn, []).append(rank)
    meshes: dict[tuple[int, ...], _cairn.Mesh] = {}
    for fqn in local_fqns:
        members = tuple(holders[fqn])
        if len(members) < ranks.world_size:
            if members not in meshes:
                meshes[members] = _cairn.Mesh((len(members),), members)
            requests.set_holders(fqn, meshes[members])
