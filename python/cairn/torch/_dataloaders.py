"""The state of a dataloader, which each rank has for its own part of the data.

A step contains it under the key ``dataloader``: ``dataloader.world_size`` is the number of ranks,
and ``dataloader.ranks.N`` is the state of rank N.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cairn import _cairn
from cairn._load.read import Reader
from cairn._tensors.stateful import is_stateful
from cairn._tensors.subclasses import Rebuilder
from cairn.errors import Invalid, NotFound

KEY = "dataloader"

_WAYS_OUT = (
    "resume with that number of ranks, give the dataloader a method repartition(states) that loads "
    "the states of all ranks, or resume with dataloader=None and place the data yourself"
)


class DataloaderState:
    """Saves and loads the state of one dataloader per rank.

    Args:
        loader: has ``state_dict`` and ``load_state_dict``, such as torchdata's
            ``StatefulDataLoader``.

    Raises Invalid if it does not.
    """

    def __init__(self, loader: Any, rank: int, world_size: int) -> None:
        if not is_stateful(loader):
            raise Invalid(
                f"dataloader={type(loader).__name__}: an object with state_dict and "
                "load_state_dict is needed, such as torchdata's StatefulDataLoader"
            )
        self._loader = loader
        self._rank, self._world_size = rank, world_size

    def add_to(self, state: Any) -> dict[Any, Any]:
        """`state` with the state of this rank's dataloader. Raises Invalid."""
        if not isinstance(state, dict) or KEY in state:
            raise Invalid(
                f"a Saver with dataloader= needs a state that is a dict without the key '{KEY}'"
            )
        own = {"world_size": self._world_size, "ranks": {str(self._rank): self._taken()}}
        return type(state)({**state, KEY: own})

    def read(self, native: _cairn.Store, step: int) -> Mapping[str, Any]:
        """The data of a step that `load` needs; nothing is changed. Raises NotFound if the step has
        no state of a dataloader, and Invalid if it cannot be loaded on this number of ranks."""
        world_size = _read(native, step, f"{KEY}.world_size").get("world_size")
        if world_size is None:
            raise NotFound(
                f"step {step} has no state of a dataloader: resume with dataloader=None",
                key=KEY,
                step=step,
            )
        if world_size == self._world_size:
            return {"state": _states(native, step, [self._rank])[0]}
        states = _states(native, step, range(world_size))
        if callable(getattr(self._loader, "repartition", None)):
            return {"states": states}
        problem = f"step {step} has the dataloader states of {world_size} ranks, and this job has "
        problem += f"{self._world_size}"
        try:
            return {"yielded": _next_position(self._loader, states, self._world_size)}
        except ValueError as error:
            raise Invalid(f"{problem}: {error}; {_WAYS_OUT}", key=KEY, step=step) from None

    def load(self, found: Mapping[str, Any]) -> None:
        """Fills the dataloader from the result of `read`."""
        if "states" in found:
            self._loader.repartition(found["states"])
        elif "state" in found:
            self._loader.load_state_dict(found["state"])
        else:
            _set_position(self._loader, found["yielded"])

    def _taken(self) -> Any:
        state = self._loader.state_dict()
        return dict(state) if isinstance(state, Mapping) else state


def _read(native: _cairn.Store, step: int, pattern: str) -> dict[str, Any]:
    """The part of the dataloader's state that matches; {} if there is none."""
    contents = native.contents(step, [pattern])
    if len(contents) == 0:
        return {}
    reader = Reader(native, contents, device=None, mmap=False, verify=True)
    rebuild = Rebuilder(contents.step, is_part=True)
    return contents.build(reader.read(False), rebuild)[KEY]


def _states(native: _cairn.Store, step: int, ranks: Sequence[int]) -> list[Any]:
    return [_read(native, step, f"{KEY}.ranks.{rank}")["ranks"][str(rank)] for rank in ranks]


def _next_position(loader: Any, states: Sequence[Any], world_size: int) -> int | None:
    """How many samples of its part of the data each of `world_size` ranks has to skip; None if the
    states are at the end of an epoch, so that the next one begins.

    The ranks of a ``StatefulDistributedSampler`` take turns: after K samples on each of N ranks,
    the first K * N samples of the epoch are used, whatever N is.

    Raises ValueError if that is not so, or if these samples cannot be divided equally.
    """
    module = sys.modules.get("torchdata.stateful_dataloader.sampler")
    sampler = getattr(loader, "sampler", None)
    if module is None or not isinstance(sampler, module.StatefulDistributedSampler):
        raise ValueError("only a StatefulDistributedSampler is repartitioned")
    if all(state.get("_iterator_finished") for state in states):
        return None
    if loader.num_workers != 0 or any("_sampler_iter_state" not in state for state in states):
        raise ValueError("only a dataloader with num_workers=0 is repartitioned")
    counts = {_yielded(state) for state in states}
    if len(counts) != 1:
        raise ValueError(f"its ranks have used different numbers of samples: {sorted(counts)}")
    used = counts.pop() * len(states)
    if used > len(sampler.dataset) or used % world_size:
        raise ValueError(f"the {used} samples that were used are not a multiple of {world_size}")
    return used // world_size


def _yielded(state: Mapping[str, Any]) -> int:
    try:
        return int(state["_sampler_iter_state"]["sampler_state"]["yielded"])
    except (KeyError, TypeError):
        raise ValueError("its state does not contain the position of the sampler") from None


def _set_position(loader: Any, yielded: int | None) -> None:
    loader.load_state_dict({})  # a new iteration
    if yielded is not None:
        loader.sampler.load_state_dict({"yielded": yielded})
        loader.sampler.yielded = yielded  # for a state_dict() before the iteration begins
