"""Applies rules to the keys of a checkpoint: which tensors result, and of which pieces.

Each rule replaces the list of keys by another one. The final pieces refer to the stored tensors,
however many rules there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from cairn._base.dtypes import name_of
from cairn._cairn import DTYPES
from cairn._load.pieces import Axis, Piece, Scale
from cairn._load.rules import Rule
from cairn.errors import Invalid

Shape = tuple[int, ...]

_CODES = {name: code for name, (code, _) in DTYPES.items()}
_FLOAT8 = {_CODES["float8_e4m3fn"], _CODES["float8_e5m2"]}
_CAST_TO = {_CODES[name] for name in ("float64", "float32", "float16", "bfloat16")}
# A hostile shape must not lead to endless lists.
_MAX_PARTS = 1 << 20
_MAX_KEYS = 16 << 20


class Key(NamedTuple):
    """A key before or after the rules: a tensor, or a plain value."""

    fqn: str
    source: int
    """The stored key that determines its place in the state: the first of its sources."""
    dtype: int | None = None
    """None: a plain value. Elements of another stored dtype are cast."""
    shape: Shape = ()
    parts: list[Piece] | None = None
    """None: all of the stored tensor."""

    @property
    def is_whole(self) -> bool:
        """True if the tensor is the stored one with another name or dtype at most."""
        return self.parts is None

    @property
    def pieces(self) -> list[Piece]:
        """Its elements, each exactly once."""
        if self.parts is not None:
            return self.parts
        return [] if 0 in self.shape else [Piece.whole(self.source, self.shape)]

    def made(self, fqn: str, shape: Shape, pieces: Iterable[Piece | None]) -> Key:
        """A tensor of the same dtype that consists of these pieces."""
        parts = [piece for piece in pieces if piece is not None]
        return self._replace(fqn=fqn, shape=shape, parts=parts)

    def __str__(self) -> str:
        return f"{name_of(self.dtype or 0)} {list(self.shape)}"


def convert_keys(
    sources: Sequence[Key], rules: Iterable[Rule], floats: int | None, casts: dict[str, int]
) -> list[Key]:
    """The keys after the rules, in the order of their first sources, and after the casts: of every
    floating-point tensor to `floats`, or to the dtype in `casts` by its new name.

    Raises Invalid, which names the rule, the key and shapes where they apply: two keys would have
    the same name; a key matches several expressions of one rename; shapes or dtypes do not fit the
    rule; parts are missing; or a rule other than a rename or drop matches a plain value. Cost:
    linear in keys times rules.
    """
    keys = list(sources)
    for rule in rules:
        keys = _Application(sources, keys, rule).run()
        _check_names(sources, keys, rule)
    for i, key in enumerate(keys):
        if key.dtype is None:
            continue
        dtype = casts.get(key.fqn)
        if dtype is None and floats is not None and key.dtype in _CAST_TO | _FLOAT8:
            dtype = floats
        if dtype is not None and dtype != key.dtype:
            if problem := _cast_problem(sources, key, dtype):
                raise Invalid(f"{problem} (key {key.fqn})", key=key.fqn)
            keys[i] = key._replace(dtype=dtype)
    return keys


def _cast_problem(sources: Sequence[Key], key: Key, dtype: int) -> str | None:
    for piece in key.pieces:
        stored = sources[piece.source].dtype or 0
        if stored != dtype and (dtype not in _CAST_TO or stored not in _CAST_TO | _FLOAT8):
            return f"there is no conversion from {name_of(stored)} to {name_of(dtype)}"
    return None


def _check_names(sources: Sequence[Key], keys: list[Key], rule: Rule) -> None:
    if len(keys) > _MAX_KEYS:
        rule.fail("it makes too many keys")
    seen: dict[str, Key] = {}
    for key in keys:
        first = seen.setdefault(key.fqn, key)
        if first is not key:
            names = (sources[each.source].fqn for each in (first, key))
            rule.fail("'{}' and '{}' would have the same name".format(*names), key.fqn)


class _Application:
    """One rule and the keys before it."""

    def __init__(self, sources: Sequence[Key], keys: list[Key], rule: Rule) -> None:
        self._sources, self._keys, self._rule = sources, keys, rule
        self._used: set[int] = set()
        """Positions of the keys that are parts of others."""

    def run(self) -> list[Key]:
        kind = self._rule.kind
        if kind == "rename":
            return [self._renamed(key) for key in self._keys]
        joins: dict[str, Callable[[], dict[int, Key]]] = {
            "concat": self._concat, "stack": self._stack, "dequantize": self._dequantize,
        }  # fmt: skip
        if join := joins.get(kind):
            made = join()
            kept = (i for i in range(len(self._keys)) if i in made or i not in self._used)
            return [made.get(i, self._keys[i]) for i in kept]
        changes: dict[str, Callable[[Key, list[str]], list[Key]]] = {
            "split": self._split, "unstack": self._unstack, "permute": self._permuted,
            "rearrange": self._rearranged, "cast": lambda key, _: [self._with_dtype(key)],
        }  # fmt: skip
        keys: list[Key] = []
        for key in self._keys:
            names = self._rule.names(key.fqn)
            if names is None:
                keys.append(key)
            elif kind != "drop":
                self._check_tensor(key)
                keys += changes[kind](key, names)
        return keys

    def _fail(self, key: Key, message: str) -> NoReturn:
        self._rule.fail(message, key.fqn)

    def _check_tensor(self, key: Key) -> None:
        if key.dtype is None:
            self._fail(key, "it matches a plain value, which can only be renamed or dropped")

    def _with_dtype(self, key: Key) -> Key:
        if problem := _cast_problem(self._sources, key, self._rule.dtype):
            self._fail(key, problem)
        return key._replace(dtype=self._rule.dtype)

    def _renamed(self, key: Key) -> Key:
        matched = None
        name = key.fqn
        for pattern in self._rule.patterns:
            derived = pattern.expression.derive(key.fqn)
            if derived is None:
                continue
            if matched is not None:
                both = f"'{matched}' and '{pattern.text}'"
                self._fail(key, f"the key matches {both}; make the expressions disjoint")
            matched, name = pattern.text, derived[1][0]
        if not name and matched is not None:
            self._fail(key, "the new name is empty")
        return key._replace(fqn=name)

    def _dim(self, key: Key, dims: int) -> int:
        """The dimension of the rule, of `dims` to choose from."""
        dim = self._rule.dim
        if not -dims <= dim < dims:
            self._fail(key, f"the tensor of shape {list(key.shape)} has no dimension {dim}")
        return dim % dims

    def _split(self, key: Key, names: list[str]) -> list[Key]:
        dim = self._dim(key, len(key.shape))
        extent, sizes = key.shape[dim], self._rule.sizes
        place = f"dimension {dim} of the shape {list(key.shape)}"
        if not sizes:
            if extent % len(names):
                parts = f"{len(names)} equal parts"
                self._fail(key, f"{place} cannot be divided into {parts}; give 'sizes'")
            sizes = [extent // len(names)] * len(names)
        if sum(sizes) != extent:
            self._fail(key, f"the sizes are {sum(sizes)} in total, but {place} is not")
        begin, pieces, made = 0, key.pieces, []
        for name, size in zip(names, sizes):
            shape = (*key.shape[:dim], size, *key.shape[dim + 1 :])
            clipped = (piece.clipped(dim, begin, size) for piece in pieces)
            is_all = size == extent
            made.append(key._replace(fqn=name) if is_all else key.made(name, shape, clipped))
            begin += size
        return made

    def _unstack(self, key: Key, names: list[str]) -> list[Key]:
        dim = self._dim(key, len(key.shape))
        if key.shape[dim] > _MAX_PARTS:
            self._fail(key, f"the shape {list(key.shape)} has too many parts")
        parts: list[list[Piece]] = [[] for _ in range(key.shape[dim])]
        for piece in key.pieces:
            axis = piece.axes[dim]
            for place, i in enumerate(axis.at):
                one = piece.with_axis(dim, axis.taken(slice(place, place + 1)))
                parts[i].append(one.without(dim))
        shape = (*key.shape[:dim], *key.shape[dim + 1 :])
        return [
            key.made(names[0].replace("{i}", str(i), 1), shape, pieces)
            for i, pieces in enumerate(parts)
        ]

    def _permuted(self, key: Key, _: list[str]) -> list[Key]:
        order = self._rule.order
        if len(order) != len(key.shape):
            shape = f"shape {list(key.shape)}"
            self._fail(key, f"the tensor of {shape} does not have {len(order)} dimensions")
        pieces = (
            piece._replace(axes=tuple(piece.axes[dim] for dim in order)) for piece in key.pieces
        )
        return [key.made(key.fqn, tuple(key.shape[dim] for dim in order), pieces)]

    def _rearranged(self, key: Key, _: list[str]) -> list[Key]:
        dim = self._dim(key, len(key.shape))
        extent, factors = key.shape[dim], self._rule.factors
        known = math.prod(factor for factor in factors if factor > 0)
        if extent % known if -1 in factors else extent != known:
            place = f"dimension {dim} of the shape {list(key.shape)}"
            self._fail(key, f"{place} is not the product of the factors")
        factors = [extent // known if factor < 0 else factor for factor in factors]
        order = self._rule.order
        pieces = (
            piece.with_axis(dim, piece.axes[dim].rearranged(factors, order)) for piece in key.pieces
        )
        return [key.made(key.fqn, key.shape, pieces)]

    def _concat(self) -> dict[int, Key]:
        places = {key.fqn: i for i, key in enumerate(self._keys)}
        made = {}
        for i, key in enumerate(self._keys):
            names = self._rule.names(key.fqn)
            if names is None:
                continue
            for name in names[1:]:
                if name not in places:
                    self._fail(key, f"there is no '{name}' to concatenate")
            parts = [i, *(places[name] for name in names[1:])]
            for part in parts:
                if part in self._used:
                    self._fail(self._keys[part], "the key would be a part of two tensors")
                self._used.add(part)
            made[i] = self._joined(names[0], [self._keys[part] for part in parts])
        return made

    def _joined(self, name: str, parts: list[Key]) -> Key:
        dim = self._dim_of_parts(parts, is_new=False)
        pieces, size = [], 0
        for part in parts:
            pieces += [piece.with_axis(dim, piece.axes[dim].shifted(size)) for piece in part.pieces]
            size += part.shape[dim]
        shape = parts[0].shape
        return parts[0].made(name, (*shape[:dim], size, *shape[dim + 1 :]), pieces)

    def _stack(self) -> dict[int, Key]:
        groups: dict[str, list[tuple[int, int]]] = {}  # (position in the stack, place in the keys)
        for i, key in enumerate(self._keys):
            derived = self._rule.patterns[0].expression.derive(key.fqn)
            if derived is None:
                continue
            digits, names = derived[0][self._rule.group - 1], derived[1]
            if not re.fullmatch("0|[1-9][0-9]{0,18}", digits):
                self._fail(key, f"'{digits}' is not the position of a part")
            groups.setdefault(names[0], []).append((int(digits), i))
            self._used.add(i)
        made = {}
        for name, parts in groups.items():
            place = min(i for _, i in parts)
            for expected, (position, i) in enumerate(sorted(parts)):
                if position != expected:
                    self._fail(
                        self._keys[i],
                        f"the parts of '{name}' do not have the positions 0 to {len(parts) - 1}: "
                        f"position {expected} is missing or there twice",
                    )
            stacked = self._stacked(name, [self._keys[i] for _, i in sorted(parts)])
            made[place] = stacked._replace(source=self._keys[place].source)
        return made

    def _stacked(self, name: str, parts: list[Key]) -> Key:
        dim = self._dim_of_parts(parts, is_new=True)
        pieces = []
        for i, part in enumerate(parts):
            added = Axis(None, range(i, i + 1), range(1))
            pieces += [
                piece._replace(axes=(*piece.axes[:dim], added, *piece.axes[dim:]))
                for piece in part.pieces
            ]
        shape = parts[0].shape
        return parts[0].made(name, (*shape[:dim], len(parts), *shape[dim:]), pieces)

    def _dim_of_parts(self, parts: list[Key], is_new: bool) -> int:
        """The dimension in which parts may differ; or, `is_new`, which none of them has."""
        for part in parts:
            self._check_tensor(part)
        dim = self._dim(parts[0], len(parts[0].shape) + is_new)
        free = None if is_new else dim

        def form(key: Key) -> tuple[object, ...]:
            return (key.dtype, *(0 if d == free else n for d, n in enumerate(key.shape)))

        for part in parts:
            if form(part) != form(parts[0]):
                self._fail(part, f"it is {part}, but '{parts[0].fqn}' is {parts[0]}")
        return dim

    def _dequantize(self) -> dict[int, Key]:
        places = {key.fqn: i for i, key in enumerate(self._keys)}
        made = {}
        for i, scale in enumerate(self._keys):
            names = self._rule.names(scale.fqn)
            if names is None:
                continue
            if names[0] not in places:
                self._fail(scale, f"there is no weight '{names[0]}'")
            place = places[names[0]]
            weight = made.get(place, self._keys[place])
            self._check_tensor(scale)
            self._check_tensor(weight)
            self._check_scale(weight, scale)
            factors = Scale(scale.source, self._rule.block)
            pieces = [piece._replace(scale=factors) for piece in weight.pieces]
            made[place] = self._with_dtype(weight.made(weight.fqn, weight.shape, pieces))
            self._used.add(i)
        return made

    def _check_scale(self, weight: Key, scale: Key) -> None:
        if not weight.is_whole or len(weight.shape) != 2 or weight.dtype not in _FLOAT8:
            which = f"'{weight.fqn}' is not a stored matrix of 8-bit floats, but {weight}"
            self._fail(scale, which)
        block, float32 = self._rule.block, _CODES["float32"]
        shape = tuple(-(-size // block) for size in weight.shape)
        stored = self._sources[scale.source].dtype
        if not scale.is_whole or (stored, scale.dtype, scale.shape) != (float32, float32, shape):
            blocks = f"blocks of {block} x {block} of '{weight.fqn}' {list(weight.shape)}"
            need = f"need float32 {list(shape)}"
            self._fail(scale, f"the factors are {scale}, but {blocks} {need}")
