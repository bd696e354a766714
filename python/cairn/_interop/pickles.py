"""Reads the pickles of torch without executing them: a class or a function is only a name.

A pickle's objects are bounded by its length: no opcode and no call makes more than it has.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cairn import _cairn
from cairn.errors import Corrupt, Invalid

_MAX_BYTES = 256 << 20
_MAX_OPCODES = 1 << 24
_MAX_NAME = 1000
_MAX_DIMENSIONS = 64

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16,
    "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "BFloat16Storage": torch.bfloat16, "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}  # fmt: skip
STORAGE_NAMES = {dtype: name for name, dtype in _STORAGES.items()}
_TENSORS = tuple(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")


class Name(str):
    """The name of a class or a function."""


class Object:
    """A call that no plain value and no tensor is the result of; nothing was called. Also a dict's
    key of a type that keys of states do not have. It is hashed by its identity."""

    __slots__ = ("name", "state")

    def __init__(self, name: str, state: Any = None) -> None:
        self.name, self.state = name, state

    def fields(self, name: str) -> dict[str, Any]:
        """The attributes of an object of this class. Raises Corrupt if it is another one."""
        if self.name != name or type(self.state) is not dict:
            raise Corrupt(f"an object of '{name}' is missing")
        return self.state


class Storage(NamedTuple):
    """The bytes of tensors. `dtype` is None if it has none."""

    data: torch.UntypedStorage
    dtype: torch.dtype | None


def find_dtype(name: Any) -> torch.dtype | None:
    """The dtype of a name such as torch.float32, if there is one that a store can hold."""
    if type(name) is not Name or not name.startswith("torch."):
        return None
    name = name.removeprefix("torch.")
    return getattr(torch, name, None) if name in _cairn.DTYPES else None


def _op(*names: str) -> set[int]:
    return {getattr(pickle, name)[0] for name in names}


class Reader(pickle._Unpickler):  # type: ignore[name-defined]
    """Reads one pickle. Raises Invalid if it is too long.

    Args:
        find_bytes: returns the bytes of the storage with a key.
        allowed: the names that may occur; None: any, because a name has no effect.
    """

    dispatch = {
        code: handler
        for code, handler in pickle._Unpickler.dispatch.items()  # type: ignore[attr-defined]
        if code in _op(
            *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE"),
            *("SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
            *("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
            *("GLOBAL", "BINPERSID", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
        )
    }  # fmt: skip

    def __init__(
        self,
        data: bytes | memoryview,
        find_bytes: Callable[[str], torch.UntypedStorage] = lambda key: _NO_BYTES,
        allowed: Callable[[str], bool] | None = None,
    ) -> None:
        if len(data) > _MAX_BYTES:
            raise Invalid(f"its pickle has {len(data)} bytes; at most {_MAX_BYTES} are read")
        file = io.BytesIO(data)
        super().__init__(file)
        self._unframer = pickle._Unframer(file.read, file.readline)  # type: ignore[attr-defined]
        self.read, self.readline = self._unframer.read, self._unframer.readline
        self.metastack: list[Any] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.proto = 0
        self.size = len(data)
        self._left = len(data) + 64  # bytes and elements that calls may still copy
        self._find_bytes = find_bytes
        self._allowed = allowed
        self._storages: dict[str, torch.UntypedStorage] = {}
        self.repeated_bytes = 0
        self.tensors_with_attributes = 0

    def load(self) -> Any:
        """The value. Raises Corrupt for what is not a pickle, and Invalid for one that builds too
        much."""
        try:
            for _ in range(_MAX_OPCODES):
                self.dispatch[self.read(1)[0]](self)
            raise Invalid(f"its pickle has more than {_MAX_OPCODES} operations")
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            if self.stack or self.metastack or any(i >= _MAX_OPCODES for i in self.memo):
                raise Corrupt("its pickle has values that are not used") from None
            return stop.value
        except (Corrupt, Invalid):
            raise
        except Exception as error:
            raise Corrupt(f"its pickle cannot be read ({type(error).__name__}: {error})") from None

    def find_class(self, module: str, name: str) -> Name:
        if len(module) + len(name) > _MAX_NAME:
            raise Corrupt("a class whose name is too long")
        module = "builtins" if module == "__builtin__" else module
        full = Name(f"{module}.{name}")
        if self._allowed is not None and not self._allowed(full):
            raise Invalid(f"the metadata names '{full}', which is not one of its classes")
        return full

    def persistent_load(self, pid: Any) -> Storage | Object:
        kind, type_name, key, _, length = pid[:5]
        if kind != "storage" or [type(x) for x in (type_name, key, length)] != [Name, str, int]:
            raise Corrupt("a storage is not identified as torch.save does it")
        short = type_name.removeprefix("torch.").removeprefix("cuda.")
        dtype = _STORAGES.get(short)
        if dtype is None and short != "storage.UntypedStorage":
            return Object(type_name)
        size = length * (dtype.itemsize if dtype is not None else 1)
        if key not in self._storages:
            self._storages[key] = self._find_bytes(key) if size else _NO_BYTES
        data = self._storages[key]
        if data.nbytes() != size:
            raise Corrupt(
                f"storage '{key}' has {data.nbytes()} bytes, but its tensors expect {size}"
            )
        return Storage(data, dtype)

    # ---- objects

    def load_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise Corrupt("a class whose name is not a text")
        self.append(self.find_class(module, name))

    dispatch[pickle.STACK_GLOBAL[0]] = load_stack_global

    def load_reduce(self) -> None:
        arguments, callee = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple:
            raise Corrupt("the arguments of a call are not a tuple")
        self.append(self._call(callee, arguments))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_reduce

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is Object:
            target.state = state
        elif isinstance(target, torch.Tensor):
            self.tensors_with_attributes += 1
        elif type(target) is not OrderedDict:  # whose attributes are not kept
            raise Corrupt("the attributes of something that is not an object")

    dispatch[pickle.BUILD[0]] = load_build

    def load_set(self) -> None:
        self.append(Object("builtins.set"))

    def load_frozenset(self) -> None:
        self.pop_mark()
        self.append(Object("builtins.frozenset"))

    def load_items(self) -> None:
        self._fill(self.pop_mark())

    def load_item(self) -> None:
        self._fill([self.stack.pop()])

    def load_pair(self) -> None:
        value = self.stack.pop()
        self._fill([self.stack.pop(), value])

    dispatch[pickle.EMPTY_SET[0]] = load_set
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    for code in _op("APPENDS", "ADDITEMS", "SETITEMS"):
        dispatch[code] = load_items
    dispatch[pickle.APPEND[0]] = load_item
    dispatch[pickle.SETITEM[0]] = load_pair

    def _fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) in (dict, OrderedDict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                # The hash of other keys may recurse without a limit.
                target[key if type(key) in (*KEY_TYPES, Object) else Object("a key")] = value
        elif type(target) is not Object:
            raise Corrupt("the elements of something that is not a container")

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Invalid("its pickle repeats its values too often")

    def _call(self, name: Any, arguments: tuple[Any, ...]) -> Any:
        if type(name) is not Name:
            raise Corrupt("a call of something that is not a name")
        types = [type(argument) for argument in arguments]
        if name == "collections.OrderedDict" and not arguments:
            return OrderedDict()
        if name == "collections.Counter" and types == [dict]:
            self._spend(len(arguments[0]))
            counter: Counter[Any] = Counter()
            dict.update(counter, arguments[0])
            return counter
        if name == "torch.Size" and types == [tuple] and is_shape(arguments[0]):
            return torch.Size(arguments[0])
        if name == "builtins.complex" and types == [float, float]:
            return complex(*arguments)
        if name == "builtins.bytes" and not arguments:
            return b""
        if name == "_codecs.encode" and types == [str, str] and arguments[1] == "latin1":
            self._spend(len(arguments[0]))
            return arguments[0].encode("latin1")
        if name in _TENSORS:
            return self._tensor(name, arguments)
        if name in _PARAMETERS and arguments and isinstance(arguments[0], (torch.Tensor, Object)):
            self.tensors_with_attributes += name.endswith("_with_state")
            return arguments[0]
        if name == "torch._tensor._rebuild_from_type_v2" and types[:3] == [Name, Name, tuple]:
            if arguments[1] not in ("torch.Tensor", "torch.nn.parameter.Parameter"):
                return Object(arguments[1])
            self.tensors_with_attributes += 1
            if arguments[0] not in _TENSORS:
                return Object(arguments[0])
            return self._call(arguments[0], arguments[2])
        return Object(name)

    def _tensor(self, name: Name, arguments: tuple[Any, ...]) -> torch.Tensor | Object:
        """Arguments: storage, offset, shape, strides, requires_grad, hooks, dtype (of v3)."""
        storage, offset, shape, strides = arguments[:4]
        rest = arguments[6:]
        if type(storage) is Object:
            return storage
        if type(storage) is not Storage:
            raise Corrupt("a tensor has no storage")
        dtype = storage.dtype
        if name.endswith("_v3"):
            dtype, rest = find_dtype(rest[0]), rest[1:]
            if dtype is None and type(arguments[6]) is Name:
                return Object(arguments[6])
        if dtype is None:
            raise Corrupt("a tensor without a dtype")
        if rest and rest[0] is not None and (type(rest[0]) is not dict or any(rest[0].values())):
            return Object("a conjugated or negated view (call resolve_conj() and resolve_neg())")
        if not is_shape(shape) or not is_shape(strides) or not is_shape((offset,)):
            raise Corrupt("a tensor whose shape, strides or offset are not counts")
        if len(strides) != len(shape):
            raise Corrupt("a tensor does not have one stride per dimension")
        data = _NO_BYTES
        if 0 not in shape:
            data = storage.data
            last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
            if (last + 1) * dtype.itemsize > data.nbytes():
                raise Corrupt("a tensor extends beyond its storage")
            size = math.prod(shape) * dtype.itemsize
            self.repeated_bytes += max(0, size - data.nbytes())
        # Requires a storage that is long enough; torch would otherwise enlarge it.
        return torch.empty((0,), dtype=dtype).set_(data, offset, shape, strides)


def is_shape(value: Any) -> bool:
    """Whether it is a tuple of at most 64 counts."""
    return (
        type(value) in (tuple, torch.Size)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(count) is int and 0 <= count < 1 << 63 for count in value)
    )


KEY_TYPES = (str, int, float, bool, type(None))
_NO_BYTES = torch.UntypedStorage(0)
