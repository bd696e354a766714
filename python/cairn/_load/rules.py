"""Rules of a conversion, checked: what each may contain, and the names that it derives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from cairn import _cairn
from cairn.errors import Invalid

_FIELDS: dict[str, tuple[str, ...]] = {
    "rename": ("to",),
    "drop": (),
    "split": ("into", "dim", "sizes"),
    "concat": ("to", "dim"),
    "stack": ("to", "dim", "group"),
    "unstack": ("to", "dim"),
    "permute": ("dims",),
    "rearrange": ("factors", "order", "dim"),
    "cast": ("dtype",),
    "dequantize": ("weight", "block", "dtype"),
}
_MAX_DIM = 64
_MAX_NUMBER = 1 << 48


class Pattern(NamedTuple):
    """An expression, and what replaces its first match in a key."""

    text: str
    expression: _cairn.Expression


class Rule:
    """One rule. Which attributes have a meaning depends on `kind`."""

    def __init__(self, given: Any, position: int) -> None:
        """Raises Invalid, which names the rule by its position, from 1."""
        self.position = position
        self.kind = ""
        self.patterns: list[Pattern] = []
        if not isinstance(given, Mapping):
            self.fail("a rule is a dict: rules consist of texts, numbers, lists, dicts")
        self._given = given
        self.kind = next((kind for kind in _FIELDS if kind in given), "")
        if not self.kind:
            self.fail(f"a rule has one of these fields: {' '.join(_FIELDS)}")
        for field in given:
            if field != self.kind and field not in _FIELDS[self.kind]:
                self.fail(f"it has no field {_shown(field)}")
        self._add_patterns()
        self.dim = self._number(given["dim"], -_MAX_DIM, _MAX_DIM) if "dim" in given else 0
        self.sizes: list[int] = []
        if "sizes" in given:
            self.sizes = self._numbers("sizes")
            if len(self.sizes) != len(given["into"]):
                self.fail("'sizes' and 'into' have different lengths")
        self.order: list[int] = []
        if self.kind in ("permute", "rearrange"):
            self._parse_order("dims" if self.kind == "permute" else "order")
        if self.kind == "stack":
            groups = self.patterns[0].expression.group_count
            if groups == 0:
                self.fail(r"the expression needs a group, the position: (\d+)")
            self.group = self._number(given.get("group", groups), 1, groups)
        self.block = self._number(given.get("block", 128), 1, (1 << 31) - 1)
        if self.kind in ("cast", "dequantize"):
            self.dtype = self._parse_dtype()

    def fail(self, message: str, key: str | None = None) -> NoReturn:
        """Raises Invalid for this rule, and the key that it was applied to."""
        pattern = f" '{self.patterns[0].text}'" if self.patterns else ""
        place = f" (key {key})" if key is not None else ""
        raise Invalid(
            f"rule {self.position} ({self.kind or 'rule'}{pattern}): {message}{place}", key=key
        )

    def names(self, key: str) -> list[str] | None:
        """The names that the first expression derives from a key; None if it does not match."""
        derived = self.patterns[0].expression.derive(key)
        return None if derived is None else derived[1]

    def _add_patterns(self) -> None:
        given = self._given[self.kind]
        if self.kind == "rename" and isinstance(given, Mapping) and "to" not in self._given:
            for text, to in given.items():
                self._add(text, [to])
        elif self.kind == "concat":
            if not isinstance(given, (list, tuple)) or len(given) < 2:
                self.fail("it needs a list of two or more")
            self._add(given[0], [self._given.get("to"), *given[1:]])
        elif self.kind == "split":
            into = self._given.get("into")
            if not isinstance(into, (list, tuple)) or not into:
                self.fail("'into' names no part")
            self._add(given, list(into))
        elif self.kind in ("rename", "stack", "unstack"):
            to = self._given.get("to")
            if self.kind == "unstack" and "{i}" not in str(to):
                self.fail("'to' needs {i}, the position of a part")
            self._add(given, [to])
        else:
            self._add(given, [self._given.get("weight")] if self.kind == "dequantize" else [])

    def _add(self, text: Any, templates: list[Any]) -> None:
        for each in (text, *templates):
            if not isinstance(each, str):
                self.fail(
                    f"{_shown(each)} is in place of a text: rules consist of texts, numbers, "
                    "lists, dicts"
                )
        try:
            self.patterns.append(Pattern(text, _cairn.Expression(text, templates)))
        except Invalid as error:
            self.fail(str(error))

    def _parse_order(self, field: str) -> None:
        self.order = self._numbers(field)
        if sorted(self.order) != list(range(len(self.order))):
            self.fail(f"'{field}' is not a permutation")
        if self.kind == "permute":
            return
        self.factors = self._numbers("factors", -1)
        if 0 in self.factors:
            self.fail("'factors' contains 0")
        if self.factors.count(-1) > 1:
            self.fail("'factors' has more than one -1")
        if len(self.factors) != len(self.order):
            self.fail("'factors' and 'order' have different lengths")

    def _parse_dtype(self) -> int:
        name = self._given.get("dtype", "bfloat16" if self.kind == "dequantize" else None)
        if not isinstance(name, str) or name not in _cairn.DTYPES:
            self.fail(f"{_shown(name)} is not a dtype")
        return _cairn.DTYPES[name][0]

    def _numbers(self, field: str, least: int = 0) -> list[int]:
        given = self._given.get(field)
        if not isinstance(given, (list, tuple)):
            self.fail(f"it needs a list '{field}'")
        return [self._number(each, least, _MAX_NUMBER) for each in given]

    def _number(self, given: Any, least: int, most: int) -> int:
        if type(given) is not int or not least <= given <= most:
            self.fail(f"{_shown(given)} is not an integer of {least} to {most}")
        return given


def _shown(value: Any) -> str:
    """The value, or only the type of one that may be long."""
    is_short = (
        value is None
        or isinstance(value, (bool, float))
        or (isinstance(value, (int, str)) and len(str(value)[:100]) < 100)
    )
    return repr(value) if is_short else f"a {type(value).__name__}"


def parse(given: Any) -> list[Rule]:
    """The rules of `rename=`: None, expressions by what replaces them, or a list of rules. Raises
    Invalid."""
    if isinstance(given, Mapping):
        given = [{"rename": dict(given)}] if given else []
    elif given is None:
        given = []
    elif isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise Invalid(f"rename={given!r}: a dict of regular expressions or a list of rules")
    return [Rule(each, position) for position, each in enumerate(given, 1)]
