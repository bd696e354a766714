"""DCP's bytes items: plain Python values are saved as such, other objects as pickles, if allowed.

A default planner would convert every value that is not a tensor into the bytes of ``torch.save``, a
pickle. The values are therefore taken from it before this conversion, and set without the inverse.
The result of a planner that transforms objects is respected: a plain value in bytes of
``torch.save`` is extracted, and other bytes are saved and returned unchanged.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem, SavePlanner, WriteItem

from cairn import _cairn
from cairn._base.patterns import literal
from cairn._load.read import Reader
from cairn._ranks.ranks import Ranks
from cairn._save.flatten import flatten
from cairn._tensors.contents import Leaf, TensorLeaf, ValueLeaf, plain_value
from cairn._tensors.subclasses import Rebuilder
from cairn.dcp._metadata import AS_GIVEN, BYTES_IO, Slot, StepMetadata, SubclassSlot, nested_values
from cairn.errors import Corrupt, Invalid, NotFound

# DCP itself decides which rank saves what; each rank's part is a separate state.
ALONE = Ranks(None, {}, None, timeout=0)

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
# The first bytes of a pickle of protocol 2 or newer, and of a zip archive of torch.save.
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")


def overrides(planner: SavePlanner | LoadPlanner, default: type, *methods: str) -> bool:
    """Whether one of these methods may be another one than that of the default planner."""
    own = type(planner)
    return any(getattr(own, name, None) is not getattr(default, name) for name in methods)


# Saving -------------------------------------------------------------------------------------------


def flat_values(values: dict[str, Any]) -> _cairn.Batch:
    """Values by FQN as a batch for C++, with tensors on CUDA devices in place. Raises Invalid for
    values that only a pickle could represent, and for an io.BytesIO, whose type a load by DCP would
    not restore."""
    batch = flatten(values, False, ALONE, [], bytes_io=False).batch
    batch.take_keys_as_fqns()
    return batch


class PlannerBytes(NamedTuple):
    """Bytes that a planner gave, for a planner to take."""

    data: bytes


def value_of(planner: SavePlanner, item: WriteItem, allow_pickle: bool) -> tuple[Any, str | None]:
    """The saved value of a bytes item, and AS_GIVEN, BYTES_IO or None. Raises Invalid for values
    that only a pickle can represent, unless that is allowed."""
    fqn = item.index.fqn
    if not overrides(planner, DefaultSavePlanner, "resolve_data", "transform_object"):
        value = planner.lookup_object(item.index)
        if type(value) is io.BytesIO:
            return value.getvalue(), BYTES_IO
        refusal = _refusal(value, fqn)
        if refusal is None:
            return value, None
        if not allow_pickle:
            raise Invalid(
                str(refusal).replace("to save and load", "to CairnWriter and CairnReader"), key=fqn
            ) from refusal
    data = planner.resolve_data(item).getvalue()
    if not data.startswith(_PICKLE_STARTS):
        return data, AS_GIVEN
    if allow_pickle:
        return _cairn.Pickle(data), AS_GIVEN
    return _unpacked(data, fqn), None


def _unpacked(data: bytes, fqn: str) -> Any:
    """The plain value in the bytes of torch.save. Raises Invalid for anything else."""
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        reason = _refusal(value, fqn)
    except Exception as error:  # an unpickler may raise any type
        reason = error
    if reason is None:
        return value
    raise Invalid(
        f"'{fqn}': the planner gives a pickle of a value that is not plain, which Cairn does not "
        "save by default: let it give plain values, or pass allow_pickle=True to CairnWriter and "
        "CairnReader",
        key=fqn,
    ) from reason


def _refusal(value: Any, fqn: str) -> Invalid | None:
    """Why the value cannot be saved without pickle; None if it can."""
    if type(value) in _PLAIN:
        return None
    try:
        flat_values({fqn: value})
    except Invalid as error:
        return error
    return None


# Loading ------------------------------------------------------------------------------------------


class Values:
    """The values of a step, as DCP's bytes items. For a single use."""

    def __init__(
        self,
        native: _cairn.Store,
        contents: _cairn.Contents,
        described: StepMetadata,
        allow_pickle: bool,
    ) -> None:
        self._native = native
        self._step, self._generation = contents.step, contents.generation
        self._state = nested_values(contents)
        self._described = described
        self._allow_pickle = allow_pickle

    def read(self, fqns: list[str], planner: LoadPlanner) -> list[Any]:
        """The value of each FQN, or the PlannerBytes for this planner. Raises NotFound for an
        unknown FQN, Invalid for a pickle that is not allowed."""
        found = [self._find(fqn) for fqn in fqns]
        arrays = self._read_arrays(found)
        values = [self._value(fqn, value, arrays) for fqn, value in zip(fqns, found)]
        if not self._allow_pickle:
            for fqn, value in zip(fqns, values):
                if isinstance(value, PlannerBytes):
                    self._check_harmless(fqn, value.data, planner)
        return values

    def _check_harmless(self, fqn: str, data: bytes, planner: LoadPlanner) -> None:
        """Raises Invalid if the planner might unpickle the bytes: the store may not be trusted."""
        takes_bytes = overrides(planner, DefaultLoadPlanner, "load_bytes")
        if takes_bytes and not data.startswith(_PICKLE_STARTS):
            return
        raise Invalid(
            f"'{fqn}' in step {self._step} is bytes that a planner made, and this planner may "
            "unpickle them, which can run any code: load with the planner that matches them, or "
            "pass allow_pickle=True to CairnReader if you trust who wrote this store",
            key=fqn,
            step=self._step,
        )

    def _find(self, fqn: str) -> Any:
        paths = self._described.metadata.planner_data
        path = paths.get(fqn) if isinstance(paths, dict) else None
        for way in (path, (fqn,)):
            try:
                value = self._state
                for key in way or ():
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                continue
            if way is not None:
                return value
        raise NotFound(f"step {self._step} has no key '{fqn}'", key=fqn, step=self._step)

    def _read_arrays(self, found: list[Any]) -> dict[str, Any]:
        """The tensors and arrays inside the values, by FQN."""
        fqns = [slot.leaf.fqn for slot in _slots(found) if isinstance(slot.leaf, TensorLeaf)]
        if not fqns:
            return {}
        contents = self._native.contents(self._step, [literal(fqn) for fqn in fqns])
        if contents.generation != self._generation:
            raise NotFound(
                f"step {self._step} was overwritten while it was being read: load it again",
                step=self._step,
            )
        reader = Reader(self._native, contents, device=None, mmap=False, verify=True)
        return dict(zip(contents.fqns(), reader.read(self._allow_pickle)))

    def _value(self, fqn: str, value: Any, arrays: dict[str, Any]) -> Any:
        is_as_given = fqn in self._described.as_given
        if is_as_given and isinstance(value, Slot) and isinstance(value.leaf, ValueLeaf):
            if not self._allow_pickle:
                value = plain_value(value.leaf, self._step, allow_pickle=False)  # raises
            else:
                value = value.leaf.value
                value = value.data if isinstance(value, _cairn.Pickle) else value
        if not is_as_given:
            rebuild = Rebuilder(self._step, is_part=False)
            value = _fill(value, lambda leaf: self._leaf(leaf, arrays), rebuild)
            is_bytes_io = fqn in self._described.bytes_io and isinstance(value, bytes)
            return io.BytesIO(value) if is_bytes_io else value
        if not isinstance(value, bytes):
            raise Corrupt(f"'{fqn}' should be bytes in step {self._step}", key=fqn, step=self._step)
        return PlannerBytes(value)

    def _leaf(self, leaf: Any, arrays: dict[str, Any]) -> Any:
        if isinstance(leaf, TensorLeaf):
            return arrays[leaf.fqn]
        return plain_value(leaf, self._step, self._allow_pickle)


def _slots(value: Any) -> list[Slot]:
    if isinstance(value, Slot):
        return [value]
    if isinstance(value, SubclassSlot):
        value = value.items
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [slot for child in value for slot in _slots(child)]


def _fill(value: Any, content_of: Callable[[Leaf], Any], rebuild: Rebuilder) -> Any:
    """A copy of the containers, with the contents of leaves in place of their slots."""
    if isinstance(value, Slot):
        return content_of(value.leaf)
    if isinstance(value, SubclassSlot):
        return rebuild(_fill(value.items, content_of, rebuild), value.fqn)
    if isinstance(value, dict):
        return type(value)({key: _fill(child, content_of, rebuild) for key, child in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([_fill(child, content_of, rebuild) for child in value])
    return value


def set_value(planner: LoadPlanner, item: ReadItem, value: Any) -> None:
    """Passes a value to the planner: directly to a default planner, to others as the bytes of
    torch.save, which they expect."""
    fqn = item.dest_index.fqn
    if overrides(planner, DefaultLoadPlanner, "load_bytes"):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        planner.load_bytes(item, buffer)
        return
    if isinstance(value, bytes) and type(planner.state_dict.get(fqn)) is io.BytesIO:
        value = io.BytesIO(value)  # of a step that was not saved by DCP
    if planner.flatten_state_dict:
        set_element(planner.original_state_dict, planner.mappings[fqn], value)
    else:
        planner.state_dict[fqn] = value
