"""What the objects of a state receive from a step: its contents, whatever state they have now.

An optimizer has no state before its first step, and lists grow. So the state dict of an object that
is not a module is replaced, before the load is planned, by one with the structure of the step. A
tensor that the object has, and that fits, is filled in place. In place of the others are meta
tensors, which the load replaces as usual. Modules keep their keys, as in torch; what is not a
tensor (``_extra_state``, lists of metrics) and uninitialized parameters are those of the step.

The dict of an object may lack a key because the object is new, or because the key belongs to other
ranks, such as another stage of a pipeline. `_is_common` states the rule. What a step has of a
parameter of an optimizer belongs to the ranks that have the parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.tree import NUMPY_ARRAY, NUMPY_SCALAR
from cairn._load.load import LoadOptions
from cairn._load.optimizer_states import Entry, check_groups, entries_of, has_groups
from cairn._load.step_tree import ABSENT, StepTree, Subclass
from cairn._ranks.sharded import is_dtensor, is_sharded
from cairn._tensors.contents import TensorLeaf, ValueLeaf
from cairn._tensors.sources import is_tensor_like, is_torch_tensor
from cairn._tensors.stateful import EXTRA_STATE, StatefulAdapter, is_module, name_of
from cairn._tensors.subclasses import SUBCLASS_KEY, Rebuilder, described, has_form, is_subclass
from cairn._tensors.targets import new_array
from cairn.errors import Corrupt, Invalid


class ObjectStates:
    """Gives the objects of an adapter the structure of a step.

    Attributes:
        lacking: FQNs of the leaves of the step that this rank does not have, except what its
            optimizers receive in any case.
        new_tensors: those in place of tensors that objects lack.
    """

    def __init__(
        self,
        adapter: StatefulAdapter,
        contents: _cairn.Contents,
        options: LoadOptions,
        skipped: dict[str, Corrupt],
    ) -> None:
        """`skipped`: the damaged leaves, to which `apply` adds those that it leaves out with
        them."""
        self._adapter, self._skipped = adapter, skipped
        self._step, self._strict = contents.step, options.strict
        plan = options.plan(contents, adapter.state, skipped)
        self._missing, self._lacked = set(plan.missing()), set(plan.unexpected())
        fqns = contents.fqns()
        selected = self._lacked.union((fqns[leaf] for _, leaf in plan.matches()), skipped)
        self._tree = StepTree(contents, selected, options.strip_wrappers)
        self.new_tensors = NewTensors()
        self._entries: dict[str, Entry] = {}
        """What the step has of the parameters of this rank's optimizers, by FQN."""
        self._own = self._find_own()
        self.lacking = sorted(self._lacked - self._own)

    def apply(self, lacking_by_rank: list[list[str]]) -> None:
        """Replaces the state dicts of the objects. Nothing that the caller has is changed. Raises
        Invalid for what cannot be loaded."""
        first, *others = lacking_by_rank
        self._lacking = {frozenset(first), *(frozenset(one) for one in others if one != first)}
        self._adapter.replace_states(self._of_object)

    def _find_own(self) -> set[str]:
        """The FQNs of the groups and of the entries of this rank's optimizers. Sets `_entries`."""
        own: set[str] = set()
        for value, state, fqn in self._adapter.objects():
            new = self._tree.find(fqn)
            if is_module(value) or not has_groups(state) or not isinstance(new, dict):
                continue
            own.update(self._tree.leaves(new.get("param_groups", ())))
            for key, entry in entries_of(value, state, new, self._stored).items():
                own.update(self._tree.leaves(new["state"][key]))
                self._entries[_join(fqn, f"state.{name_of(key)}")] = entry
        return own

    def _of_object(self, value: Any, state: Any, fqn: str) -> Any:
        if is_module(value):
            return self._of_module(state, fqn)
        new = self._tree.find(fqn)
        if new is ABSENT:
            return state
        if has_groups(state) and has_groups(new):
            name = _join(fqn, "param_groups")
            groups = self._merged(new["param_groups"], state["param_groups"], name)
            check_groups(value, groups, fqn, self._step)
        return self._merged(new, state, fqn)

    def _of_module(self, state: Any, fqn: str) -> Any:
        made = copy.copy(state)  # with the _metadata of an OrderedDict
        names = set(_own_names(state, fqn))
        for key, value in state.items():
            name = _join(fqn, name_of(key))
            if name in names:
                new = self._tree.find(name)
                made[key] = value if new is ABSENT else self._merged(new, value, name)
                if made[key] is ABSENT:
                    raise Invalid(
                        f"'{name}' is damaged in step {self._step}, and the module has "
                        f"something else there: use Store.load with keys='!{name}'",
                        key=name,
                        step=self._step,
                    )
        return made

    def _merged(self, new: Any, old: Any, fqn: str, entry: Entry | None = None) -> Any:
        """`new` of the step, with what fits of `old`. `ABSENT`: nothing, because this rank does not
        receive it, or because it is damaged and `old` has another form."""
        if isinstance(new, dict):
            if isinstance(old, (list, tuple)) and all(type(key) is int for key in new):
                return self._merged_list(new, old, fqn, entry, is_part=True)
            if is_subclass(old) and _join(fqn, SUBCLASS_KEY) not in self._missing:
                return old  # some of its inner tensors are selected
            return self._merged_dict(new, old, fqn, entry)
        if type(new) in (list, tuple):
            made = self._merged_list(dict(enumerate(new)), old, fqn, entry, is_part=False)
            return type(new)(made) if isinstance(made, list) else made
        if self._is_left_out(self._tree.leaves(new)):
            return self._kept(old, fqn)
        if isinstance(new, Subclass):
            document = described(self._stored(new.items[SUBCLASS_KEY]), new.fqn, self._step)
            self._check_shape(fqn, tuple(document["size"]), old, entry)
            return old if has_form(old, document) else self._rebuilt(new, old)
        if isinstance(new, tuple):  # a torch.Size
            return type(new)(map(self._stored, new))
        leaf = self._tree.leaf(new)
        if isinstance(leaf, TensorLeaf):
            self._check_shape(fqn, leaf.info.shape, old, entry)
            like = None if entry is None else entry.parameter
            return old if self._fits(leaf, old) else self.new_tensors.make(leaf, like)
        # A value replaces another one. An update reads only the long ones that have changed.
        is_value = not isinstance(old, (dict, list, tuple)) and not is_tensor_like(old)
        return old if is_value and old is not ABSENT else None

    def _check_shape(self, fqn: str, shape: tuple[int, ...], old: Any, entry: Entry | None) -> None:
        if entry is not None and self._strict:
            entry.check_shape(fqn, self._step, shape, old)

    def _merged_dict(self, new: dict, old: Any, fqn: str, entry: Entry | None) -> Any:
        names = self._tree.keys(new, fqn)
        olds = self._tree.keys(old, fqn) if isinstance(old, dict) else {}
        keeps = old is ABSENT or isinstance(old, dict)
        added = self._added(new, names, olds, fqn, keeps)
        made: dict[Any, Any] = {}
        for name, key in names.items():
            if name in olds or name in added:
                had = old[olds[name]] if name in olds else ABSENT
                below = _join(fqn, name_of(key))
                found = self._entries.get(below)
                one = self._merged(new[key], had, below, found or entry)
                if one is not ABSENT:
                    made[olds.get(name, found.key if found else key)] = one
        for name, key in olds.items():
            kept = ABSENT if name in names else self._kept(old[key], _join(fqn, name_of(key)))
            if kept is not ABSENT:
                made[key] = kept
        if made or not new or isinstance(old, dict):
            return type(new)(made)
        return self._kept(old, fqn)

    def _merged_list(
        self, new: dict[int, Any], old: Any, fqn: str, entry: Entry | None, is_part: bool
    ) -> Any:
        """`new`: the elements of a list or tuple, or a part of them, by position."""
        made = list(old) if isinstance(old, (list, tuple)) else []
        if not is_part:
            del made[len(new) :]
        more = [i for i in new if i >= len(made)]
        if self._is_left_out([leaf for i in more for leaf in self._tree.leaves(new[i])]):
            if not isinstance(old, (list, tuple)):
                return self._kept(old, fqn)
            new = {i: one for i, one in new.items() if i < len(made)}
        for i, one in sorted(new.items()):
            had = made[i] if i < len(made) else ABSENT
            element = self._merged(one, had, _join(fqn, str(i)), entry)
            if i <= len(made):
                made[i : i + 1] = [{} if element is ABSENT else element]
        return type(old)(made) if is_part else made

    def _added(
        self, new: dict, names: dict[str, Any], olds: Collection[str], fqn: str, keeps: bool
    ) -> Collection[str]:
        """The names of the keys that this rank receives in addition to those of its object,
        `olds`. `keeps`: whether it can have others in another form, such as ``a.b``."""
        lacked: dict[str, list[str]] = {}
        for name in names.keys() - olds:
            leaves = self._tree.leaves(new[names[name]])
            has_none = not leaves or not keeps or not self._lacked.isdisjoint(leaves)
            if has_none and not self._is_left_out(leaves):
                lacked[name] = leaves
        own = {name for name, leaves in lacked.items() if leaves and self._own.issuperset(leaves)}
        if len(own) < len(lacked) and self._is_common(new, names, lacked.keys(), fqn):
            return lacked
        return own

    def _is_common(
        self, new: dict, names: dict[str, Any], lacked: Collection[str], fqn: str
    ) -> bool:
        """Whether a rank receives the keys that its dict lacks: all ranks that have anything of the
        dict have the same keys of it. Otherwise each rank keeps its own keys, as stages do.

        Raises Invalid if the load is strict and this rank has a part of what another one has.
        """
        if len(self._lacking) == 1:
            return True
        leaves = {name: set(self._tree.leaves(new[key])) for name, key in names.items()}
        held = {
            frozenset(name for name, of in leaves.items() if of - lacking - self._skipped.keys())
            for lacking in self._lacking
        } - {frozenset()}
        if len(held) <= 1:
            return True
        mine = names.keys() - lacked
        for other in held if self._strict else ():
            if mine < other and (more := sorted(other & set(lacked))):
                raise Invalid(
                    f"'{fqn}' of this rank has only a part of the keys of another rank, without "
                    f"'{more[0]}', so that it is unknown whether it is behind, or another stage "
                    "of a pipeline: give the objects of stages separate names, or leave out what "
                    "this rank lacks with strict=False",
                    key=_join(fqn, more[0]),
                    step=self._step,
                )
        return False

    def _is_left_out(self, leaves: list[str]) -> bool:
        """Whether one of these leaves, which are a part that the object lacks or one tensor, is
        damaged. Then none of them is loaded."""
        damaged = next((fqn for fqn in leaves if fqn in self._skipped), None)
        for fqn in leaves if damaged is not None else ():
            text = f"'{fqn}' is left out with '{damaged}', which is damaged"
            error = Corrupt(text, key=fqn, step=self._step)
            self._skipped.setdefault(fqn, error)
        return damaged is not None

    def _kept(self, old: Any, fqn: str) -> Any:
        """What remains of a part that the step lacks, or that is not selected."""
        if isinstance(old, dict):
            items = ((key, self._kept(one, _join(fqn, name_of(key)))) for key, one in old.items())
            kept = {key: one for key, one in items if one is not ABSENT}
            return kept or (ABSENT if old else old)
        if isinstance(old, (list, tuple)):
            is_kept = any(
                self._kept(one, _join(fqn, str(i))) is not ABSENT for i, one in enumerate(old)
            )
            return old if is_kept else ABSENT
        name = _join(fqn, SUBCLASS_KEY) if is_subclass(old) else fqn
        return ABSENT if name in self._missing else old

    def _fits(self, leaf: TensorLeaf, old: Any) -> bool:
        """Whether the load fills `old`, or refuses it: parts of tensors belong to a mesh."""
        if is_sharded(old):
            return True
        if not is_tensor_like(old) or dtypes.is_numpy_scalar(old) or _is_lazy(old):
            return False
        if not is_torch_tensor(old) and not dtypes.is_array(old):
            return True
        code = dtypes.code_of_torch if is_torch_tensor(old) else dtypes.code_of_numpy
        return (code(old.dtype), tuple(old.shape)) == (leaf.info.dtype, leaf.info.shape)

    def _rebuilt(self, new: Subclass, old: Any) -> Any:
        """A tensor subclass of new tensors; `old` if only some of them are selected."""
        inner: dict[str, Any] = {}
        for name, item in new.items.items():
            if isinstance(item, Subclass):
                inner[name] = self._rebuilt(item, None)
            else:
                leaf = self._tree.leaf(item)
                is_tensor = isinstance(leaf, TensorLeaf)
                inner[name] = self.new_tensors.make(leaf) if is_tensor else leaf.value
        made = Rebuilder(self._step, is_part=True)(inner, new.fqn)
        return old if made is inner else made

    def _stored(self, leaf: int) -> Any:
        """The value of a leaf that is not a tensor."""
        found = self._tree.leaf(leaf)
        return found.value if isinstance(found, ValueLeaf) else None


class NewTensors:
    """Tensors in place of those that an object lacks: meta tensors, which the load replaces, or
    memory on the device of a parameter. Those that are tied in the step are one tensor.

    Attributes:
        has_memory: whether one of them is not a meta tensor: its memory has no contents yet.
    """

    def __init__(self) -> None:
        self.has_memory = False
        self._made: dict[tuple, Any] = {}
        """By place in the step."""

    def make(self, leaf: TensorLeaf, like: Any = None) -> Any:
        """`like`: the parameter to which it belongs, which it is placed as."""
        if leaf.kind == NUMPY_SCALAR:
            return None
        key = leaf.kind, leaf.info.place, id(like)
        if key not in self._made:
            self._made[key] = self._new(leaf, like)
        return self._made[key]

    def _new(self, leaf: TensorLeaf, like: Any) -> Any:
        shape = leaf.info.shape
        if leaf.kind == NUMPY_ARRAY:
            self.has_memory = True
            return new_array(leaf.info.dtype, shape)
        torch = dtypes.require_torch()
        dtype = dtypes.torch_dtype(leaf.info.dtype)
        if like is None or not shape:  # a count of steps is in host memory
            return torch.empty(shape, dtype=dtype, device="meta")
        device = "meta" if like.device.type == "cpu" or is_dtensor(like) else like.device
        self.has_memory |= device != "meta"
        if tuple(like.shape) == shape:
            return torch.empty_like(like.detach(), dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device)


def takes_contents(adapter: StatefulAdapter) -> bool:
    """Whether an object of the state receives what the step contains."""
    return any(
        not is_module(value) or next(_own_names(state, fqn), None) is not None
        for value, state, fqn in adapter.objects()
    )


def _own_names(state: Any, fqn: str) -> Iterator[str]:
    """The keys of a module's state dict whose contents are those of the step, of any form."""
    torch = dtypes.require_torch()
    usual = (torch.Tensor, torch.nn.Parameter)
    for key, value in state.items():
        if type(value) not in usual or str(key).endswith(EXTRA_STATE):
            if not is_tensor_like(value) or str(key).endswith(EXTRA_STATE) or _is_lazy(value):
                yield _join(fqn, name_of(key))


def _is_lazy(value: Any) -> bool:
    torch = dtypes.loaded_torch()
    return torch is not None and torch.nn.parameter.is_lazy(value)


def _join(fqn: str, text: str) -> str:
    return f"{fqn}.{text}" if fqn else text
