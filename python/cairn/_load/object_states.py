"""What the objects of a state receive from a step: its contents, whatever state they have now.

An optimizer has no state before its first step, and lists grow. So the state dict of an object that
is not a module is replaced, before the load is planned, by one with the structure of the step. A
tensor that the object has, and that fits, is filled in place. In place of the others are meta
tensors, which the load replaces as usual. Modules keep their keys, as in torch; what is not a
tensor (``_extra_state``, lists of metrics) and uninitialized parameters are those of the step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from typing import Any

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.tree import NUMPY_ARRAY, NUMPY_SCALAR
from cairn._ranks.sharded import is_dtensor, is_sharded
from cairn._tensors.contents import TensorLeaf, ValueLeaf, leaf_at
from cairn._tensors.sources import is_tensor_like, is_torch_tensor
from cairn._tensors.stateful import EXTRA_STATE, StatefulAdapter, is_module, name_of
from cairn._tensors.subclasses import Rebuilder
from cairn._tensors.targets import new_array
from cairn.errors import Invalid

_ABSENT = object()


class ObjectStates:
    """Gives the objects of an adapter the structure of a step.

    Args:
        missing: FQNs of the leaves of the state that are selected and that the step lacks.
        addable: FQNs of the leaves of the step that this rank may add: no rank has them.
        skipped: FQNs of leaves that are not loaded.
        strip_wrappers: whether names match without those of wrappers.
    """

    def __init__(
        self,
        contents: _cairn.Contents,
        missing: Collection[str],
        addable: Collection[str],
        skipped: Collection[str],
        strip_wrappers: bool,
    ) -> None:
        self._contents = contents
        self._missing, self._addable = set(missing), set(addable)
        self._skipped = skipped
        self._bare: Callable[[str], str] = _cairn.without_wrappers if strip_wrappers else str
        self.has_new_memory = False
        """Whether a new tensor is not a meta tensor: its memory has no contents yet."""
        self._made: dict[tuple, Any] = {}
        """New tensors by place in the step, so that tied ones remain tied."""
        self._texts: dict[int, dict[str, Any]] = {}
        """Keys by text of the dicts of the step, by id."""

    def apply(self, adapter: StatefulAdapter) -> None:
        """Replaces the state dicts of the objects. Nothing that the caller has is changed."""
        names = {
            self._bare(name)
            for value, state, fqn in adapter.objects()
            for name in (_own_names(state, fqn) if is_module(value) else [fqn])
        }
        above = tuple(f"{name}." if name else "" for name in names)
        leaves: list[Any] = [0] * len(self._contents)
        for i, fqn in enumerate(self._contents.fqns()):
            name = self._bare(fqn)
            if name.startswith(above) or name in names:
                leaf = leaf_at(self._contents, i)
                leaves[i] = leaf.stored if isinstance(leaf, ValueLeaf) else leaf
        self._tree = self._contents.build(leaves, self._rebuilt)
        adapter.replace_states(self._of_object)

    def _rebuilt(self, items: dict[str, Any], fqn: str) -> Any:
        if not any(isinstance(item, TensorLeaf) for item in items.values()):
            return items  # of no object
        inner = {
            name: self._tensor(item, None) if isinstance(item, TensorLeaf) else item
            for name, item in items.items()
        }
        return Rebuilder(self._contents.step, is_part=True)(inner, fqn)

    def _of_object(self, value: Any, state: Any, fqn: str) -> Any:
        if is_module(value):
            return self._of_module(state, fqn)
        new = self._find(self._tree, fqn)
        if new is _ABSENT:
            return state
        if isinstance(new, dict) and isinstance(new.get("param_groups"), list):
            new = self._with_parameters(new, getattr(value, "param_groups", ()))
        return self._merged(new, state, fqn, None)

    def _of_module(self, state: Any, fqn: str) -> Any:
        made = copy.copy(state)  # with the _metadata of an OrderedDict
        names = set(_own_names(state, fqn))
        for key, value in state.items():
            name = _join(fqn, name_of(key))
            if name in names:
                new = self._find(self._tree, _join(fqn, self._name_of(key)))
                made[key] = value if new is _ABSENT else self._merged(new, value, name, None)
        return made

    def _with_parameters(self, new: dict[Any, Any], groups: Any) -> dict[Any, Any]:
        """The state of an optimizer, in which the states of parameters are marked by them."""
        saved = [one for group in new["param_groups"] for one in group.get("params", ())]
        own = [parameter for group in groups for parameter in group["params"]]
        by_name = {name_of(key): parameter for key, parameter in zip(saved, own)}
        keys = {name_of(key): key for key in saved}
        states = new.get("state")
        if not isinstance(states, dict):
            return new
        # An imported step can have texts in place of the numbers.
        marked = {
            keys.get(name_of(key), key): _OfParameter(value, by_name.get(name_of(key)))
            for key, value in states.items()
        }
        return {**new, "state": marked}

    def _merged(self, new: Any, old: Any, fqn: str, like: Any) -> Any:
        """`new` of the step, with what fits of `old`; `_ABSENT` if this rank may not add it."""
        if isinstance(new, _OfParameter):
            new, like = new.state, new.parameter
        if isinstance(new, TensorLeaf):
            is_new = new.fqn in self._addable or old is not _ABSENT
            if not is_new or new.fqn in self._skipped or self._fits(new, old):
                return old
            return self._tensor(new, like)
        if isinstance(new, dict):
            return self._merged_dict(new, old, fqn, like)
        if type(new) in (list, tuple):
            return self._merged_list(new, old, fqn, like)
        if isinstance(new, tuple):  # a torch.Size
            return new
        if is_torch_tensor(new):  # a subclass
            is_same = type(old) is type(new) and old.shape == new.shape
            return old if is_same else new
        if isinstance(new, _cairn.LongValue):
            # An update reads only those that have changed.
            return None if old is _ABSENT or is_tensor_like(old) else old
        return new if old is not _ABSENT or fqn in self._addable else _ABSENT

    def _merged_dict(self, new: dict[Any, Any], old: Any, fqn: str, like: Any) -> Any:
        if isinstance(old, (list, tuple)) and all(type(key) is int for key in new):
            return self._merged_part(new, old, fqn, like)
        olds = {self._name_of(key): key for key in old} if isinstance(old, dict) else {}
        made: dict[Any, Any] = {}
        for key, value in new.items():
            text = name_of(key)
            key = olds.pop(self._name_of(key), key)
            had = old[key] if isinstance(old, dict) and key in old else _ABSENT
            one = self._merged(value, had, _join(fqn, text), like)
            if one is not _ABSENT:
                made[key] = one
            elif old is _ABSENT:
                return _ABSENT  # another rank has a part of it
        for key in olds.values():
            kept = self._kept(old[key], _join(fqn, name_of(key)))
            if kept is not _ABSENT:
                made[key] = kept
        return type(new)(made)

    def _merged_list(self, new: Any, old: Any, fqn: str, like: Any) -> Any:
        olds = old if isinstance(old, (list, tuple)) else ()
        pairs = ((value, olds[i] if i < len(olds) else _ABSENT) for i, value in enumerate(new))
        made = [self._merged(*pair, _join(fqn, str(i)), like) for i, pair in enumerate(pairs)]
        if old is _ABSENT and any(one is _ABSENT for one in made):
            return _ABSENT
        while made and made[-1] is _ABSENT:
            made.pop()
        if any(one is _ABSENT for one in made):  # the others would change their places
            raise Invalid(
                f"'{fqn}' has elements that are not loaded before others that are: load all of "
                "them, or none",
                key=fqn,
                step=self._contents.step,
            )
        return type(new)(made)

    def _merged_part(self, new: dict[int, Any], old: Any, fqn: str, like: Any) -> Any:
        """A list or tuple of which the step, or what is selected of it, has some elements."""
        made = list(old)
        for i, value in sorted(new.items()):
            had = made[i] if i < len(made) else _ABSENT
            one = self._merged(value, had, _join(fqn, str(i)), like)
            if i < len(made):
                made[i] = one
            elif i == len(made) and one is not _ABSENT:
                made.append(one)
        return type(old)(made)

    def _kept(self, old: Any, fqn: str) -> Any:
        """What remains of a part that the step lacks, or that is not selected."""
        if isinstance(old, dict):
            items = ((key, self._kept(one, _join(fqn, name_of(key)))) for key, one in old.items())
            kept = {key: one for key, one in items if one is not _ABSENT}
            return kept or (_ABSENT if old else old)
        if isinstance(old, (list, tuple)):
            is_kept = any(
                self._kept(one, _join(fqn, str(i))) is not _ABSENT for i, one in enumerate(old)
            )
            return old if is_kept else _ABSENT
        return _ABSENT if fqn in self._missing else old

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

    def _tensor(self, leaf: TensorLeaf, like: Any) -> Any:
        """Where a tensor is read to: a meta tensor, or memory on the device of `like`."""
        if leaf.kind == NUMPY_SCALAR:
            return None
        key = leaf.kind, leaf.info.place, id(like)
        if key not in self._made:
            self._made[key] = self._new(leaf, like)
        return self._made[key]

    def _new(self, leaf: TensorLeaf, like: Any) -> Any:
        shape = leaf.info.shape
        if leaf.kind == NUMPY_ARRAY:
            self.has_new_memory = True
            return new_array(leaf.info.dtype, shape)
        torch = dtypes.require_torch()
        dtype = dtypes.torch_dtype(leaf.info.dtype)
        if like is None or not shape:  # a count of steps is in host memory
            return torch.empty(shape, dtype=dtype, device="meta")
        device = "meta" if like.device.type == "cpu" or is_dtensor(like) else like.device
        self.has_new_memory |= device != "meta"
        if tuple(like.shape) == shape:
            return torch.empty_like(like.detach(), dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device)

    def _name_of(self, key: Any) -> str:
        return self._bare(name_of(key))

    def _find(self, tree: Any, name: str) -> Any:
        """What a tree has under a name."""
        if not name:
            return tree
        if not isinstance(tree, dict):
            return _ABSENT
        texts = self._texts.setdefault(id(tree), {})
        if not texts:
            texts.update((self._name_of(key), key) for key in tree)
        end = len(name)
        while end > 0:
            if name[:end] in texts:
                found = self._find(tree[texts[name[:end]]], name[end + 1 :])
                if found is not _ABSENT:
                    return found
            end = name.rfind(".", 0, end)
        return _ABSENT


class _OfParameter:
    """The state that an optimizer has of one parameter."""

    def __init__(self, state: Any, parameter: Any) -> None:
        self.state, self.parameter = state, parameter


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
