"""The base of an adapter: which step of which store has the model that it changes."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from cairn._base.addresses import canonical_address, parse_address, step_number
from cairn.errors import Conflict, Corrupt, Invalid, NotFound
from cairn.store import Store
from cairn.store import open as open_store

BASE_FILE = "cairn_base.json"
"""Is kept with the step of an adapter, and part of its directory when it is exported."""

_SOURCE = "_cairn_base_step"


class BaseStep(NamedTuple):
    """A step by its place and by the identity that copies of it share."""

    store: str
    step: int
    identity: str

    def encode(self) -> bytes:
        return (json.dumps(self._asdict(), indent=2, sort_keys=True) + "\n").encode()

    @property
    def address(self) -> str:
        return f"{self.store}@{self.step}"

    def check_same(self, other: BaseStep) -> None:
        """Raises Conflict if `other` is not this step or a copy of it."""
        if other.identity != self.identity:
            raise Conflict(
                f"{other.address} is not the base of this adapter, which was trained on "
                f"{self.address}: it has the identity {other.identity} instead of {self.identity}. "
                "It was overwritten, or base= names another model",
                step=other.step,
            )


def address_in(store: str, base: Any) -> Any:
    """What was given as the base, of which a number is a step of this store."""
    return f"{store}@{step_number(base)}" if isinstance(base, int) else base


def step_of(store: Store, step: int) -> BaseStep:
    """Describes a step of an open store."""
    identity = store.opened.native.step_info(step).attempt
    return BaseStep(canonical_address(store.address), step, identity)


def decode_base(data: bytes, step: int) -> BaseStep:
    """Raises Corrupt if `data` does not describe a step."""
    try:
        base = BaseStep(**json.loads(data))
    except (TypeError, ValueError, RecursionError):
        base = None
    if base is None or tuple(map(type, base)) != (str, int, str):
        raise Corrupt(f"step {step}: '{BASE_FILE}' does not describe a step", step=step)
    return base


def remember_base(model: Any, base: BaseStep) -> None:
    """Notes in a model which step it was loaded from, for an adapter that is trained on it."""
    setattr(model, _SOURCE, base)


def remembered_base(model: Any) -> BaseStep | None:
    return getattr(model, _SOURCE, None)


def base_of(model: Any, given: str | os.PathLike[str] | None) -> BaseStep:
    """The base of a PeftModel: the step at the address `given`, or the one that its base model was
    loaded from. Raises Invalid if neither is known, and NotFound."""
    if given is None:
        found = remembered_base(model.get_base_model())
        if found is None:
            raise Invalid(
                "it is not known which step has the base model of this adapter: load that with "
                "cairn.hf.from_pretrained, or give base='STORE@STEP'"
            )
        return found
    address = parse_address(given)
    with open_store(address.store, alone=True) as store:
        step = latest_of(store) if address.step is None else store.opened.number(address.step)
        return step_of(store, step)


def latest_of(store: Store) -> int:
    """The number of the latest step. Raises NotFound if there is none."""
    step = store.latest()
    if step is None:
        raise NotFound(f"{store!r} has no step: save one with cairn.hf.save_pretrained first")
    return step
