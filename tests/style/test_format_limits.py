"""The pages of the format state the limits and the dtypes that the code has."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "format"


def constant(name: str, path: str) -> int:
    """The value of a C++ constant that is a number, a shift or a product."""
    text = (ROOT / path).read_text()
    found = re.search(rf"\b{name} = ([^;]+);", text)
    assert found, f"{path} has no {name}"
    expression = found[1].replace("std::numeric_limits<int64_t>::max()", "(1 << 63) - 1")
    expression = expression.replace("~uint64_t{0}", "(2**64 - 1)").replace("'", "")
    expression = re.sub(r"uint64_t\{(\d+)\}|(\d+)[uUlL]+", r"\1\2", expression)
    assert re.fullmatch(r"[\d\s()<>*+-]+", expression), f"{path}: {name} = {expression}"
    return eval(expression)  # noqa: S307 - only digits and operators


def test_the_page_of_limits_states_the_constants():
    page = (PAGES / "limits.md").read_text()
    rows = re.findall(r"^\|[^|]+\| ([\d^ -]+) \| `(k\w+)` in `([\w/.]+)` \|", page, re.MULTILINE)
    assert len(rows) == page.count("| `k") >= 20
    for value, name, path in rows:
        assert eval(value.replace("^", "**")) == constant(name, path), name  # noqa: S307


def test_the_page_of_dtypes_lists_all_of_them():
    page = (PAGES / "dtypes.md").read_text()
    stated = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    code = (ROOT / "schema" / "dtype.h").read_text()
    defined = re.findall(r'ROW\(k\w+, +(\d+), +"(\w+)", +(\d+)\)', code)
    assert defined == stated
