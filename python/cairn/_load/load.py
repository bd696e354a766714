"""Loading in place: fills the tensors of the caller's state from a step.

All checks precede all changes: which keys are present, dtypes, shapes, whether a value can be
replaced in its container. Plain values are read, too. Then the bytes of tensors are read, and then
plain values are replaced. The C++ side plans the load of contiguous tensors
(python/src/load_plan.cc); this module plans all other leaves.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn
from cairn._base import devices, dtypes
from cairn._base.tree import LIST, MAPPINGS, NUMPY_SCALAR
from cairn._load.contents import stored_name
from cairn._ranks.ranks import Ranks
from cairn._ranks.sharded import (
    MeshShard,
    Shards,
    describes_shards,
    is_checkpointable,
    is_sharded,
)
from cairn._tensors.contents import (
    Leaf,
    TensorLeaf,
    ValueLeaf,
    check_no_pickle,
    leaf_at,
    plain_values,
)
from cairn._tensors.sources import (
    box_dtype,
    check_torch,
    dtype_code,
    is_tensor_like,
    is_torch_tensor,
)
from cairn._tensors.stateful import StatefulAdapter
from cairn._tensors.subclasses import SUBCLASS_KEY, with_inner
from cairn._tensors.subclasses import check_same as check_same_subclass
from cairn._tensors.targets import (
    MetaTensorFactory,
    Target,
    check_same,
    host_target_of,
    mark_changed,
    new_array,
    target_of,
)
from cairn.errors import Corrupt, Invalid, NotFound, Refusals, refuse

if TYPE_CHECKING:
    from cairn._load.conversions import ConversionOptions
    from cairn.reports import LoadReport

_MUTABLE = (*MAPPINGS, LIST)


class LoadOptions(NamedTuple):
    """The options of `Store.load`, `pull` and `check`."""

    strict: bool = True
    patterns: Sequence[str] = ()
    """Leaves that these do not match are skipped, in the step and in the state."""
    prefix: str = ""
    ignore_frozen: bool = False
    allow_pickle: bool = False
    device: Any = None
    """Device of new tensors for meta tensors; None: the group's, or torch's default."""
    read_once: bool = False
    skip_damaged: bool = False
    strip_wrappers: bool = False
    """Whether names match without those of wrappers (_cairn.without_wrappers)."""
    conversion: ConversionOptions | None = None
    is_resume: bool = False
    """Whether the caller takes only `strict` of the arguments of `Store.load`."""

    @property
    def selected(self) -> list[str]:
        """The patterns of what is read: a plan selects names without wrappers by itself."""
        return [] if self.strip_wrappers else list(self.patterns)

    def adapt(self, state: Any) -> StatefulAdapter:
        return StatefulAdapter(state, self.prefix, self.ignore_frozen)

    def plan(
        self, contents: _cairn.Contents, state: Any, skipped: Collection[str] = ()
    ) -> _cairn.LoadPlan:
        patterns = list(self.patterns)
        return _cairn.LoadPlan(contents, state, patterns, list(skipped), self.strip_wrappers)


class Source(NamedTuple):
    """What a load reads."""

    contents: _cairn.Contents
    options: LoadOptions
    """With the patterns below the prefix."""
    skipped: dict[str, Corrupt]


class Load:
    """One load in place: the constructor plans it and changes nothing, `run` executes it.

    Attributes:
        unexpected: FQNs of the step that the state lacks.
        requests: what is read.
        unmatched: the error if a load that is not strict loads nothing on any rank; None: this rank
            has nothing to load, or loads something.
        match_count: how many leaves of the state the step has.
        read_once: whether one rank reads for several; False for a single process.
        by_nccl: whether tensors that are read once are forwarded over NCCL; must be equal on all
            ranks.
    """

    def __init__(self, native: _cairn.Store, state: Any, source: Source, ranks: Ranks) -> None:
        """Plans the load. Raises Invalid, or NotFound for keys that the step lacks."""
        self._native = native
        contents, options, self._skipped = source
        self._contents, self._options = contents, options
        # Ranks exchange stored chunks, not converted ones.
        self.read_once = options.read_once and ranks.world_size > 1 and not contents.is_converted
        self.by_nccl = False
        plan = options.plan(contents, state, self._skipped)
        self._missing, self.unexpected = plan.missing(), plan.unexpected()
        self.match_count = len(plan.matches())
        self.unmatched: NotFound | None = None
        if self._missing:
            from cairn._load import key_errors

            key_errors.check_no_module(state)
            advice = key_errors.advice(options.is_resume)
            lacking = self._missing, contents, self.unexpected
            if options.strict:
                raise key_errors.missing_keys(*lacking, advice)
            if len(self.unexpected) > 0 and not self._skipped:
                if self.match_count == 0:
                    self.unmatched = key_errors.no_key_of_state(*lacking, advice)
                key_errors.check_wrappers(*lacking)
        self._others = OtherLeaves(plan, contents, options, ranks)
        refusals = Refusals()
        for node, leaf in plan.request_contiguous():
            try:
                self._others.add(node, leaf, leaf_at(contents, leaf))
            except Invalid as error:
                refusals.add(error)
        self._check_doubles(plan.doubles(), refusals)
        refusals.raise_all()
        self._others.read_values(self._changed_values())
        self.requests = plan.requests
        self._plan = plan

    def _changed_values(self) -> Container[str] | None:
        """FQNs of the values of the state that are not those of the step; None: any."""
        return None

    def mark_tensors(self) -> None:
        """Called before the read, which may fail when it has filled some."""
        mark_changed([*self.requests.tensors(), *self._others.changed_tensors()])

    def _check_doubles(self, doubles: list[tuple[str, str]], refusals: Refusals) -> None:
        """Refuses tensors that are tied in the state and not equal in the step."""
        for fqn, other in doubles:
            names = [stored_name(self._contents, each) for each in (fqn, other)]
            if None in names or not self._native.has_equal_chunks(self.info, *names):
                step = self._contents.step
                refusals.add(
                    Invalid(
                        f"'{fqn}' shares its memory with '{other}' in the state, but they are two "
                        f"different tensors in step {step}: untie them, or use read()",
                        key=fqn,
                        step=step,
                    )
                )

    @property
    def info(self) -> _cairn.StoredStep:
        return self._contents.info

    def check_unexpected(self) -> None:
        """Raises Invalid if the load is strict and a key is unexpected."""
        if self._options.strict and self.unexpected:
            from cairn._load.key_errors import advice, unexpected_keys

            way_out = advice(self._options.is_resume)
            raise unexpected_keys(self.unexpected, self._contents.step, way_out)

    def run(self) -> LoadReport:
        """Executes the load. On Corrupt or Unavailable the state is partly filled."""
        from cairn.reports import LoadReport

        self.mark_tensors()
        done = devices.load(
            self._native,
            self._contents.info,
            self.requests,
            contents=self._contents,
            read_once=self.read_once,
            by_nccl=self.by_nccl,
        )
        self._others.finish()
        return LoadReport(
            step=self._contents.step,
            missing=self._missing,
            unexpected=self.unexpected,
            bytes_read=done.bytes_read,
            seconds=done.seconds,
            skipped=self._skipped,
        )


def _is_fillable(value: Any) -> bool:
    # numpy scalars are immutable: they are replaced like plain values.
    return is_tensor_like(value) and not dtypes.is_numpy_scalar(value)


class OtherLeaves:
    """The leaves that C++ does not plan: where each is read to, and what is replaced afterwards."""

    def __init__(
        self, plan: _cairn.LoadPlan, contents: _cairn.Contents, options: LoadOptions, ranks: Ranks
    ) -> None:
        self._plan = plan
        self._step = contents.step
        self._target_of = host_target_of if contents.is_converted else target_of
        self._allow_pickle = options.allow_pickle
        self._is_resume = options.is_resume
        self._shards = Shards(ranks)
        self._meta_tensors = MetaTensorFactory(options.device, ranks)
        self._targets: list[Target] = []
        self._sharded: list[Any] = []
        """What has parts that are targets."""
        self.has_new_shards = False
        """Whether a part of a tensor is read into new memory."""
        self.has_new_tensors = False
        """Whether a tensor is created in place of a meta tensor."""
        self.values: dict[int, ValueLeaf] = {}
        """Values of the step by node, which `read_values` makes replacements."""
        self._replacements: dict[int, Any] = {}
        """New values by node; for a numpy scalar, the array that it is read into."""
        self._subclasses: dict[int, Any] = plan.subclasses()
        """Tensor subclasses of the state by node, whose inner tensors are the leaves below it."""
        self._meta_subclasses: set[int] = set()
        """Nodes of those with an inner tensor on the meta device."""
        self._materialized_by_id: dict[int, Any] = {}
        """Their replacements, by id of the meta tensor."""

    def add(self, node: int, index: int, leaf: Leaf) -> None:
        """Plans the load of `leaf`, which has position `index` in the step, to a node. Raises
        Invalid."""
        value, key, parent, _ = self._plan.node(node)
        if key == SUBCLASS_KEY and parent in self._subclasses:
            stored = leaf.value if isinstance(leaf, ValueLeaf) else None
            fqn = leaf.fqn.removesuffix(SUBCLASS_KEY).removesuffix(".")
            check_same_subclass(stored, value, fqn, self._step)
        elif isinstance(leaf, ValueLeaf):
            if _is_fillable(value):
                raise self._mismatch(leaf, "a plain value", value)
            if not self._allow_pickle:
                check_no_pickle(leaf, self._step)
            self._check_replaceable(node, leaf)
            self.values[node] = leaf
        elif describes_shards(value) or is_checkpointable(value):
            self._request_shard(index, leaf, value)
        elif is_torch_tensor(value) and value.device.type == "meta":
            self._add_meta(node, index, leaf, value)
        elif is_sharded(value):
            self._request_shard(index, leaf, value)
        elif _is_fillable(value):
            self._request(index, leaf, self._target_of(value, leaf.fqn))
        elif leaf.kind == NUMPY_SCALAR:
            array = new_array(leaf.info.dtype, ())
            self._replace(node, leaf, array)
            self._request(index, leaf, self._target_of(array, leaf.fqn), is_new=True)
        else:
            raise self._mismatch(leaf, "a tensor", value)

    def changed_tensors(self) -> list[Any]:
        """The tensors that the load fills, and those that consist of them."""
        filled = [target.owner for target in self._targets]
        return [*filled, *self._sharded, *self._subclasses.values()]

    def read_values(self, changed: Container[str] | None = None) -> None:
        """Reads the values, of which the long ones are not read if they are not in `changed`. Ends
        the plan, because it may raise, and ranks agree on a plan before they load."""
        chosen = {
            node: leaf
            for node, leaf in self.values.items()
            if changed is None
            or leaf.fqn in changed
            or not isinstance(leaf.stored, _cairn.LongValue)
            or self._plan.node(node)[0] is None
        }
        values = plain_values(list(chosen.values()), self._step, self._allow_pickle)
        for node, value in zip(chosen, values):
            is_file = isinstance(value, bytes) and type(self._plan.node(node)[0]) is io.BytesIO
            self._replacements[node] = io.BytesIO(value) if is_file else value

    def finish(self) -> None:
        """Copies staged bytes to their targets and replaces values, after the read."""
        for target in self._targets:
            target.complete()
        # From the last node to the first: a tuple is rebuilt once its children are known, and is
        # then a new value of its parent.
        rebuilt: dict[int, list[Any]] = {}
        last = max((*self._replacements, *self._meta_subclasses), default=-1)
        for node in range(last, -1, -1):
            if node in rebuilt:
                new = self._rebuild(self._plan.node(node)[0], rebuilt.pop(node))
            elif node in self._meta_subclasses:
                new = self._materialized(self._subclasses[node], self._plan.node(node)[0])
            elif node in self._replacements:
                new = self._replacements[node]
                new = new[()] if dtypes.is_array(new) else new
            else:
                continue
            _, key, parent, _ = self._plan.node(node)
            container, _, _, kind = self._plan.node(parent)
            if kind in _MUTABLE:
                container[key] = new
                continue
            if parent not in rebuilt:
                rebuilt[parent] = list(container)
            rebuilt[parent][key] = new

    def _materialized(self, meta: Any, inner: dict[str, Any]) -> Any:
        """The tensor in place of a subclass on the meta device; one for all tied ones."""
        if id(meta) not in self._materialized_by_id:
            self._materialized_by_id[id(meta)] = with_inner(meta, inner)
        return self._materialized_by_id[id(meta)]

    def _rebuild(self, value: Any, elements: list[Any]) -> Any:
        """A tuple of the type of `value`. Raises Invalid for a torch.Size of something else than
        sizes."""
        try:
            return type(value)(elements)
        except TypeError as error:
            raise Invalid(
                f"step {self._step} has a value that the {type(value).__name__} of the state "
                f"cannot contain: {error}",
                step=self._step,
            ) from None

    def _mismatch(self, leaf: Leaf, stored: str, value: Any) -> Invalid:
        return Invalid(
            f"'{leaf.fqn}' is {stored} in step {self._step} but of type {type(value).__name__} in "
            "the state: make both the same, or use read()",
            key=leaf.fqn,
            step=self._step,
        )

    def _replace(self, node: int, leaf: Leaf, value: Any) -> None:
        self._check_replaceable(node, leaf)
        self._replacements[node] = value

    def _check_replaceable(self, node: int, leaf: Leaf) -> None:
        above = node
        while above != 0:
            above = self._plan.node(above)[2]
            if above in self._subclasses:
                self._meta_subclasses.add(above)
            elif self._plan.node(above)[3] in _MUTABLE:
                return
        raise refuse(
            leaf.fqn,
            "a value that cannot be replaced, because no dict or list contains it",
            "put the state into a dict, or use read()",
        )

    def _add_meta(self, node: int, index: int, leaf: TensorLeaf, meta: Any) -> None:
        # First, because it may raise.
        code = dtype_code(meta.dtype, leaf.fqn) if is_sharded(meta) else check_torch(meta, leaf.fqn)
        self._check_same(leaf, code, tuple(meta.shape))
        made = self._meta_tensors.make(meta, leaf.fqn)
        self.has_new_tensors = True
        self._replace(node, leaf, made)
        if is_sharded(made):
            self.has_new_shards = True
            self._request_shard(index, leaf, made)
        else:
            self._request(index, leaf, self._target_of(made, leaf.fqn), is_new=True)

    def _check_same(self, leaf: TensorLeaf, code: int, shape: tuple[int, ...]) -> None:
        stored, given = (leaf.info.dtype, leaf.info.shape), (code, shape)
        if stored != given:
            from cairn._load.key_errors import advice, way_to_load

            way_out = way_to_load(leaf.fqn, stored, given, advice(self._is_resume))
            check_same(leaf.fqn, self._step, stored, given, way_out)

    def _request_shard(self, index: int, leaf: TensorLeaf, value: Any) -> None:
        """Plans the load of this rank's part of a DTensor or ShardedTensor."""
        self._sharded.append(value)
        shard = self._shards.of(value, leaf.fqn)
        if isinstance(shard, MeshShard):
            self._check_same(leaf, dtype_code(value.dtype, leaf.fqn), shard.global_shape)
            if shard.is_here:
                target = self._target_of(shard.local, leaf.fqn)
                memory = target.shape, target.strides, target.address, target.device
                self._add_shard_target(target)
            else:
                memory = (0,), (1,), 0, devices.HOST
            self._plan.request_shard(index, *memory, shard.native())
            return
        if shard.boxes:  # the shape and dtype of an empty LocalShardsWrapper have no meaning
            self._check_same(leaf, box_dtype(shard, value, leaf.fqn), shard.global_shape)
        parts = []
        for offsets, sizes, local in shard.boxes:
            target = self._target_of(local, leaf.fqn)
            parts.append((offsets, sizes, target.strides, target.address, target.device))
            self._add_shard_target(target)
        sharding = (leaf.info.shape, None, parts)
        self._plan.request_shard(index, (0,), (1,), 0, devices.HOST, sharding)

    def _add_shard_target(self, target: Target) -> None:
        self._targets.append(target)
        self.has_new_shards = self.has_new_shards or target.finish is not None

    def _request(self, index: int, leaf: TensorLeaf, target: Target, is_new: bool = False) -> None:
        self._check_same(leaf, target.dtype, target.shape)
        has_base = not is_new and target.finish is None
        if self._plan.request(index, target.strides, target.address, target.device, has_base):
            self._targets.append(target)
