"""Loading in place: a step's bytes into the tensors of a state that the caller has.

Everything is checked before anything is changed: which keys are there, dtypes, shapes, whether a
value can be put where it belongs. Then the bytes are read, then plain values are replaced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cairn import _cairn, dtypes
from cairn.contents import Contents, Leaf, TensorLeaf, ValueLeaf, place_of, plain_value
from cairn.errors import Invalid, NotFound
from cairn.reading import Request
from cairn.reports import LoadReport
from cairn.targets import Target, check_same, new_array, new_tensor, target_of
from cairn.tensors import check_torch, is_tensor_like, is_torch_tensor, refuse
from cairn.tree import LEAF, LIST, MAPPINGS, NUMPY_SCALAR, Node, walk

_MUTABLE = (*MAPPINGS, LIST)


def load_into(
    native: _cairn.Store, state: Any, contents: Contents, *, strict: bool, allow_pickle: bool
) -> LoadReport:
    """Fills `state` from `contents`. Raises NotFound or Invalid with nothing changed."""
    nodes = walk(state)
    wanted = _leaves_by_fqn(nodes)
    stored = {leaf.fqn: leaf for leaf in contents.leaves}
    missing = tuple(fqn for fqn in wanted if fqn not in stored)
    unexpected = tuple(fqn for fqn in stored if fqn not in wanted)
    if strict:
        _check_strict(missing, unexpected, contents.step)
    plan = _Plan(nodes, contents.step, allow_pickle)
    for fqn, index in wanted.items():
        if fqn in stored:
            plan.add(index, stored[fqn])
    bytes_read, seconds = native.load(contents.info, plan.requests)
    plan.finish()
    return LoadReport(contents.step, missing, unexpected, bytes_read, seconds)


def _leaves_by_fqn(nodes: list[Node]) -> dict[str, int]:
    leaves: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if node.kind != LEAF:
            continue
        if node.fqn in leaves:
            raise Invalid(
                f"two leaves of the state are named '{node.fqn}': rename a key", key=node.fqn
            )
        leaves[node.fqn] = index
    return leaves


def _check_strict(missing: tuple[str, ...], unexpected: tuple[str, ...], step: int) -> None:
    way_out = "load parts with strict=False, or read() what you need"
    if missing:
        raise NotFound(
            f"step {step} lacks {_some(missing)} of the state: {way_out}", key=missing[0], step=step
        )
    if unexpected:
        raise Invalid(
            f"the state lacks {_some(unexpected)} of step {step}: {way_out}",
            key=unexpected[0],
            step=step,
        )


def _some(fqns: tuple[str, ...]) -> str:
    shown = ", ".join(f"'{fqn}'" for fqn in fqns[:5])
    more = f", ... ({len(fqns)} keys)" if len(fqns) > 5 else ""
    return shown + more


def _is_fillable(value: Any) -> bool:
    # numpy scalars are immutable: they are replaced, as plain values are.
    return is_tensor_like(value) and not isinstance(value, np.generic)


class _Plan:
    """What is to be read where, and what is to be replaced after."""

    def __init__(self, nodes: list[Node], step: int, allow_pickle: bool) -> None:
        self._nodes = nodes
        self._step = step
        self._allow_pickle = allow_pickle
        self._targets: list[Target] = []
        self._filled: dict[tuple, tuple] = {}
        """Target memory, and the place in the step that it is filled from."""
        self._replacements: dict[int, Any] = {}
        """New values of nodes; for a numpy scalar the array that it is read into."""
        self._materialised: dict[int, Any] = {}
        """Tensors in place of meta tensors, by the id of these, so that tied ones stay tied."""
        self.requests: list[Request] = []

    def add(self, index: int, leaf: Leaf) -> None:
        """Plans to load `leaf` into the node at `index`. Raises Invalid."""
        value = self._nodes[index].value
        if isinstance(leaf, ValueLeaf):
            if _is_fillable(value):
                raise self._mismatch(leaf, "a plain value", value)
            self._replace(index, plain_value(leaf, self._step, self._allow_pickle))
        elif is_torch_tensor(value) and value.device.type == "meta":
            made = self._materialise(value, leaf)
            self._replace(index, made)
            self._request(leaf, target_of(made, leaf.fqn))
        elif _is_fillable(value):
            self._request(leaf, target_of(value, leaf.fqn))
        elif leaf.kind == NUMPY_SCALAR:
            array = new_array(leaf.info.dtype, ())
            self._replace(index, array)
            self._request(leaf, target_of(array, leaf.fqn))
        else:
            raise self._mismatch(leaf, "a tensor", value)

    def finish(self) -> None:
        """After the bytes have arrived: staged ones to their place, new values into containers."""
        for target in self._targets:
            if target.finish is not None:
                target.finish()
        # From the last node to the first: a tuple is made anew once its children are known, and is
        # itself a new value of its parent.
        rebuilt: dict[int, list[Any]] = {}
        for index in range(len(self._nodes) - 1, 0, -1):
            node = self._nodes[index]
            if index in rebuilt:
                new = type(node.value)(rebuilt.pop(index))
            elif index in self._replacements:
                new = self._replacements[index]
                new = new[()] if isinstance(new, np.ndarray) else new
            else:
                continue
            parent = self._nodes[node.parent]
            if parent.kind in _MUTABLE:
                parent.value[node.key] = new
            else:
                rebuilt.setdefault(node.parent, list(parent.value))[node.key] = new

    def _mismatch(self, leaf: Leaf, stored: str, value: Any) -> Invalid:
        return Invalid(
            f"'{leaf.fqn}' is {stored} in step {self._step} but of type {type(value).__name__} in "
            "the state: make both the same, or use read()",
            key=leaf.fqn,
            step=self._step,
        )

    def _replace(self, index: int, value: Any) -> None:
        node = self._nodes[index]
        parent = node
        while parent.parent >= 0:
            parent = self._nodes[parent.parent]
            if parent.kind in _MUTABLE:
                self._replacements[index] = value
                return
        raise refuse(
            node.fqn,
            "a value that cannot be replaced, as no dict or list is around it",
            "put the state into a dict, or use read()",
        )

    def _materialise(self, meta: Any, leaf: TensorLeaf) -> Any:
        if id(meta) in self._materialised:
            return self._materialised[id(meta)]
        made = new_tensor(check_torch(meta, leaf.fqn), tuple(meta.shape))
        torch = dtypes.require_torch()
        if isinstance(meta, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=meta.requires_grad)
        self._materialised[id(meta)] = made
        return made

    def _request(self, leaf: TensorLeaf, target: Target) -> None:
        info = leaf.info
        check_same(leaf.fqn, self._step, (info.dtype, info.shape), (target.dtype, target.shape))
        memory = (target.address, target.dtype, target.shape, target.strides)
        place = place_of(info)
        filled_from = self._filled.setdefault(memory, place) if info.nbytes else place
        if filled_from is not place:
            # Tied tensors: one read is enough, and two could not both be right.
            if filled_from == place:
                return
            raise Invalid(
                f"'{leaf.fqn}' shares its memory with '{filled_from[0]}' in the state, but they "
                f"are two tensors in step {self._step}: untie them, or use read()",
                key=leaf.fqn,
                step=self._step,
            )
        self._targets.append(target)
        self.requests.append(
            (leaf.fqn, None, info.shape, info.dtype, target.strides, target.address)
        )
