"""Loading in place: a step's bytes into the tensors of a state that the caller has.

Everything is checked before anything is changed: which keys are there, dtypes, shapes, whether a
value can be put where it belongs. Then the bytes are read, then plain values are replaced. Plain
tensors in host memory are planned in C++ (python/src/load_plan.cc), all other leaves here.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from cairn import _cairn, dtypes
from cairn.contents import Leaf, TensorLeaf, ValueLeaf, leaf_at, plain_value
from cairn.errors import Invalid, NotFound
from cairn.reports import LoadReport
from cairn.targets import Target, check_same, new_array, new_tensor, target_of
from cairn.tensors import check_torch, is_tensor_like, is_torch_tensor, refuse
from cairn.tree import LIST, MAPPINGS, NUMPY_SCALAR

_MUTABLE = (*MAPPINGS, LIST)


def load_into(
    native: _cairn.Store, state: Any, contents: _cairn.Contents, *, strict: bool, allow_pickle: bool
) -> LoadReport:
    """Fills `state` from `contents`. Raises NotFound or Invalid with nothing changed."""
    plan = _cairn.LoadPlan(contents, state)
    missing, unexpected = plan.missing(), plan.unexpected()
    if strict:
        _check_strict(missing, unexpected, contents.step)
    others = _OtherLeaves(plan, contents.step, allow_pickle)
    for node, leaf in plan.request_plain():
        others.add(node, leaf, leaf_at(contents, leaf))
    bytes_read, seconds = native.load(contents.info, plan.requests)
    others.finish()
    return LoadReport(contents.step, missing, unexpected, bytes_read, seconds)


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


class _OtherLeaves:
    """All leaves but plain tensors in host memory: what is to be read where, and replaced after."""

    def __init__(self, plan: _cairn.LoadPlan, step: int, allow_pickle: bool) -> None:
        self._plan = plan
        self._step = step
        self._allow_pickle = allow_pickle
        self._targets: list[Target] = []
        self._replacements: dict[int, Any] = {}
        """New values of nodes; for a numpy scalar the array that it is read into."""
        self._materialised: dict[int, Any] = {}
        """Tensors in place of meta tensors, by the id of these, so that tied ones stay tied."""

    def add(self, node: int, index: int, leaf: Leaf) -> None:
        """Plans to load `leaf`, which is at `index` in the step, into a node. Raises Invalid."""
        value, *_ = self._plan.node(node)
        if isinstance(leaf, ValueLeaf):
            if _is_fillable(value):
                raise self._mismatch(leaf, "a plain value", value)
            self._replace(node, leaf, plain_value(leaf, self._step, self._allow_pickle))
        elif is_torch_tensor(value) and value.device.type == "meta":
            made = self._materialise(value, leaf)
            self._replace(node, leaf, made)
            self._request(index, leaf, target_of(made, leaf.fqn))
        elif _is_fillable(value):
            self._request(index, leaf, target_of(value, leaf.fqn))
        elif leaf.kind == NUMPY_SCALAR:
            array = new_array(leaf.info.dtype, ())
            self._replace(node, leaf, array)
            self._request(index, leaf, target_of(array, leaf.fqn))
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
        pending = [-node for node in self._replacements]
        heapq.heapify(pending)
        while pending:
            node = -heapq.heappop(pending)
            value, key, parent, _ = self._plan.node(node)
            if node in rebuilt:
                new = type(value)(rebuilt.pop(node))
            else:
                new = self._replacements[node]
                new = new[()] if isinstance(new, np.ndarray) else new
            container, _, _, kind = self._plan.node(parent)
            if kind in _MUTABLE:
                container[key] = new
                continue
            if parent not in rebuilt:
                rebuilt[parent] = list(container)
                heapq.heappush(pending, -parent)
            rebuilt[parent][key] = new

    def _mismatch(self, leaf: Leaf, stored: str, value: Any) -> Invalid:
        return Invalid(
            f"'{leaf.fqn}' is {stored} in step {self._step} but of type {type(value).__name__} in "
            "the state: make both the same, or use read()",
            key=leaf.fqn,
            step=self._step,
        )

    def _replace(self, node: int, leaf: Leaf, value: Any) -> None:
        above = node
        while above != 0:
            above = self._plan.node(above)[2]
            if self._plan.node(above)[3] in _MUTABLE:
                self._replacements[node] = value
                return
        raise refuse(
            leaf.fqn,
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

    def _request(self, index: int, leaf: TensorLeaf, target: Target) -> None:
        info = leaf.info
        check_same(leaf.fqn, self._step, (info.dtype, info.shape), (target.dtype, target.shape))
        if self._plan.request(index, target.strides, target.address):
            self._targets.append(target)
