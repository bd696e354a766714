"""What each rank has for itself: the position of its dataloader, and its random generators.

A step contains such a part under its key: ``KEY.world_size`` is the number of ranks, and
``KEY.ranks.N`` is the state of rank N.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from cairn import _cairn
from cairn._load.read import Reader
from cairn._tensors.random_states import rng_state, set_rng_state
from cairn._tensors.subclasses import Rebuilder
from cairn.errors import Invalid, NotFound


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
        return [self._read(native, step, f"ranks.{rank}")["ranks"][str(rank)] for rank in ranks]

    def _read(self, native: _cairn.Store, step: int, below: str) -> dict[str, Any]:
        """What the step has of this part below a key; {} if there is nothing."""
        contents = native.contents(step, [f"{self.key}.{below}"])
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
