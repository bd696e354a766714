"""What each rank has for itself: the position of its dataloader, and its random generators.

A step contains such a part under its key: ``KEY.world_size`` is the number of ranks, and
``KEY.ranks.N`` is the state of rank N.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cairn import _cairn
from cairn._load.read import Reader
from cairn._tensors.random_states import rng_state, set_rng_state
from cairn._tensors.stateful import is_stateful
from cairn._tensors.subclasses import Rebuilder
from cairn.errors import Invalid, NotFound

_GENERATOR = "cairn_generator"
"""The key of the state of the generator that was given to the loader."""

_WAYS_OUT = (
    "resume with that number of ranks, give the dataloader a method repartition(states) that loads "
    "the states of all ranks, or resume with dataloader=None and place the data yourself"
)


class RankPart:
    """A part of a step that each rank saves and loads for itself.

    Attributes:
        key: its key in the step, and the name of the argument that selects it.
        nothing: the value of the argument without it.
    """

    key = ""
    nothing = "None"

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def take(self) -> Any:
        """The state of this rank."""

    def read(self, native: _cairn.Store, step: int) -> Mapping[str, Any]:
        """What `load` needs of a step; nothing is changed. Raises NotFound if the step has no such
        part, and Invalid if it cannot be loaded on this number of ranks."""
        raise NotImplementedError

    def load(self, found: Mapping[str, Any]) -> None:
        """Applies the result of `read`."""

    def is_in(self, native: _cairn.Store, step: int) -> bool:
        """Whether a step has such a part, of any number of ranks."""
        return bool(self._read(native, step, "world_size"))

    def add_to(self, state: Any) -> dict[Any, Any]:
        """`state` with this part. Raises Invalid."""
        if not isinstance(state, dict) or self.key in state:
            raise Invalid(
                f"a Saver with {self.key}= needs a state that is a dict without the key "
                f"'{self.key}'"
            )
        own = {"world_size": self.world_size, "ranks": {str(self.rank): self.take()}}
        return type(state)({**state, self.key: own})

    def world_size_of(self, native: _cairn.Store, step: int) -> int:
        """The number of ranks whose states a step has. Raises NotFound."""
        world_size = self._read(native, step, "world_size").get("world_size")
        if world_size is None:
            raise NotFound(
                f"step {step} has no state of '{self.key}': resume with {self.key}={self.nothing}",
                key=self.key,
                step=step,
            )
        return world_size

    def states_of(self, native: _cairn.Store, step: int, ranks: Sequence[int]) -> list[Any]:
        def read(rank: int) -> Any:
            own = self._read(native, step, f"ranks.{rank}")
            # A state without values is found among all others only.
            return (own or self._read(native, step))["ranks"][str(rank)]

        return [read(rank) for rank in ranks]

    def _read(self, native: _cairn.Store, step: int, *below: str) -> dict[str, Any]:
        """What the step has of this part, or below a key of it; {} if there is nothing."""
        contents = native.contents(step, [".".join((self.key, *below))])
        if len(contents) == 0:
            return {}
        reader = Reader(native, contents, device=None, mmap=False, verify=True)
        rebuild = Rebuilder(contents.step, is_part=True)
        return contents.build(reader.read(False), rebuild)[self.key]


class RandomGenerators(RankPart):
    """The generators of Python, numpy and torch, and of the CUDA devices of this process.

    On fewer ranks than before, the states of the others are not used; on more, the new ranks keep
    their own, with a warning.
    """

    key = "rng"
    nothing = "False"

    def take(self) -> Any:
        return rng_state()

    def read(self, native: _cairn.Store, step: int) -> Mapping[str, Any]:
        world_size = self.world_size_of(native, step)
        if self.rank >= world_size:
            return {"world_size": world_size}
        return {"state": self.states_of(native, step, [self.rank])[0]}

    def load(self, found: Mapping[str, Any]) -> None:
        if "state" in found:
            set_rng_state(found["state"])
        else:
            warnings.warn(
                f"rank {self.rank} keeps its random generators: the step has those of "
                f"{found['world_size']} ranks",
                RuntimeWarning,
                stacklevel=2,
            )


class DataloaderState(RankPart):
    """Saves and loads the state of one dataloader per rank.

    Args:
        loader: has ``state_dict`` and ``load_state_dict``, such as torchdata's
            ``StatefulDataLoader``.

    Raises Invalid if it does not.
    """

    key = "dataloader"

    def __init__(self, loader: Any, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        if not is_stateful(loader):
            raise Invalid(
                f"dataloader={type(loader).__name__}: an object with state_dict and "
                "load_state_dict is needed, such as torchdata's StatefulDataLoader"
            )
        self._loader = loader
        generator = getattr(loader, "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None

    def take(self) -> Any:
        state = self._loader.state_dict()
        if not isinstance(state, Mapping):
            return state
        # torchdata saves where it was when the epoch began, and forgets what was drawn after that.
        drawn = {} if self._generator is None else {_GENERATOR: self._generator.get_state()}
        return {**state, **drawn}

    def read(self, native: _cairn.Store, step: int) -> Mapping[str, Any]:
        world_size = self.world_size_of(native, step)
        if world_size == self.world_size:
            return {"state": self.states_of(native, step, [self.rank])[0]}
        states = self.states_of(native, step, range(world_size))
        if callable(getattr(self._loader, "repartition", None)):
            return {"states": states}
        problem = f"step {step} has the dataloader states of {world_size} ranks, and this job has "
        problem += f"{self.world_size}"
        try:
            return {"yielded": _next_position(self._loader, states, self.world_size)}
        except ValueError as error:
            raise Invalid(f"{problem}: {error}; {_WAYS_OUT}", key=self.key, step=step) from None

    def load(self, found: Mapping[str, Any]) -> None:
        generator = None
        if "states" in found:
            self._loader.repartition([_without_generator(state)[0] for state in found["states"]])
        elif "state" in found:
            state, generator = _without_generator(found["state"])
            self._loader.load_state_dict(state)
        else:
            _set_position(self._loader, found["yielded"])
        # A StatefulDataLoader creates its iterator here, unless it has one, and so draws from the
        # generators before their states are loaded, and not when the loop begins.
        self._loader.state_dict()
        if generator is not None and self._generator is not None:
            self._generator.set_state(generator)


def _without_generator(state: Any) -> tuple[Any, torch.Tensor | None]:
    """The state of the loader, and the one that `take` has added."""
    if not isinstance(state, Mapping) or _GENERATOR not in state:
        return state, None
    state = dict(state)
    generator = state.pop(_GENERATOR)
    return state, generator


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
