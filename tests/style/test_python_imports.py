"""The direction of imports inside the Python package.

1. A module imports only packages that `MAY_IMPORT` allows for its own package. Every import counts,
   also one inside a function or under TYPE_CHECKING.
2. The imports that run when modules are loaded form no cycle.
3. The private modules of a public package (`cairn.dcp._writer`) are imported only inside it.
4. No module imports a private name (`from cairn.store import _close_all`) of another module.
5. Imports are absolute.
6. A private package has an `__init__.py` with one sentence about its theme and no code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from test_layout import find_cycle

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python" / "cairn"

# _base <- _ranks <- _tensors <- _mirror <- _opened <- _save, _load <- store; public packages on top
# of these.
_BASE = {"_cairn", "errors", "reports", "_base"}
_OPENED = {*_BASE, "_ranks", "_tensors", "_mirror", "_opened"}
_CALLS = {*_OPENED, "_save", "_load"}
MAY_IMPORT = {
    "_base": _BASE,
    "_ranks": {*_BASE, "_ranks"},
    "_tensors": {*_BASE, "_ranks", "_tensors"},
    "_mirror": {*_BASE, "_mirror"},
    "_opened": _OPENED,
    "_save": {*_OPENED, "_save"},
    "_load": {*_OPENED, "_load"},
    "_check": _CALLS,
    "_copies": {*_BASE, "_opened", "_copies", "store"},
    "store": {*_CALLS, "_check", "_copies", "store"},
    "state_dict": {*_BASE, "_ranks", "_tensors", "state_dict"},
    "torch": {*_CALLS, "store", "torch"},
    "dcp": {*_CALLS, "store", "torch", "dcp"},
    "convert": {*_BASE, "_tensors", "_load", "store", "convert"},
    "hf": {*_BASE, "_tensors", "_load", "_save", "_by_address", "store", "torch", "convert",
           "hf"},
    "jax": {*_BASE, "_ranks", "_tensors", "_load", "_save", "_by_address", "store", "jax"},
    "trainers": {*_BASE, "_save", "_by_address", "store", "torch", "dcp", "hf", "trainers"},
    "metrics": {*_BASE, "metrics"},
    "_by_address": {*_BASE, "_ranks", "_mirror", "_save", "store"},
    "_interop": {*_BASE, "_ranks", "_tensors", "_save", "_load", "convert", "_interop"},
    "": {"errors", "reports", "store", "_copies", "_mirror", "_save"},  # cairn/__init__.py
}
PACKAGE_OF_MODULE = {"errors": "_base", "reports": "_base"}
PUBLIC_PACKAGES = {"state_dict", "torch", "dcp", "convert", "hf", "jax", "metrics", "trainers"}


class Import(NamedTuple):
    """One name that a module imports from the package; `name` is empty for `import cairn.x`."""

    line: int
    module: str
    name: str
    is_loaded: bool
    """False inside functions and under TYPE_CHECKING."""


def imports_of(text: str) -> Iterator[Import]:
    """The imports of modules of `cairn`. A relative import has a module that starts with "."."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(text), True)]
    while pending:
        node, is_loaded = pending.pop()
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module.split(".")[0] in ("cairn", ""):
                for alias in node.names:
                    yield Import(node.lineno, module, alias.name, is_loaded)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "cairn":
                    yield Import(node.lineno, alias.name, "", is_loaded)
        is_loaded = is_loaded and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        is_loaded = is_loaded and not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        pending += [(child, is_loaded) for child in ast.iter_child_nodes(node)]


def package_of(module: str) -> str:
    """The key of MAY_IMPORT for a module such as `cairn.dcp._writer`."""
    top = module.split(".")[1] if "." in module else ""
    return PACKAGE_OF_MODULE.get(top, top)


def resolve(found: Import, modules: set[str]) -> str:
    """The module that an import names: `from cairn import store` names `cairn.store`."""
    submodule = f"{found.module}.{found.name}"
    return submodule if submodule in modules else found.module


def find_violations(sources: dict[str, str]) -> list[str]:
    """What breaks rules 1 to 5. `sources`: text by module name."""
    modules = {*sources, "cairn._cairn"}
    problems = []
    for module, text in sources.items():
        package = package_of(module)
        for found in imports_of(text):
            where = f"{module}:{found.line}"
            if found.module.startswith("."):
                problems.append(f"{where}: a relative import")
                continue
            target = resolve(found, modules)
            top = target.split(".")[1] if "." in target else "__init__"
            is_name = target == found.module and found.name != ""
            if package not in MAY_IMPORT:
                problems.append(f"{where}: package {package!r} is not in MAY_IMPORT")
            elif top not in MAY_IMPORT[package]:
                problems.append(f"{where}: {package or 'cairn'} may not import {target}")
            elif top in PUBLIC_PACKAGES and top != package and "._" in target:
                problems.append(f"{where}: {target} is private to cairn.{top}")
            elif is_name and found.name.startswith("_"):
                problems.append(f"{where}: {found.name} is private to {target}")
    cycle = find_cycle(loaded_imports(sources))
    return problems + ([f"a cycle: {' -> '.join(cycle)}"] if cycle else [])


def loaded_imports(sources: dict[str, str]) -> dict[str, set[str]]:
    """The modules of the package that each module imports when it is loaded."""
    modules = {*sources, "cairn._cairn"}
    return {
        module: {
            resolve(found, modules)
            for found in imports_of(text)
            if found.is_loaded and not found.module.startswith(".")
        }
        & (sources.keys() - {module})
        for module, text in sources.items()
    }


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_point_down_the_packages_and_form_no_cycle():
    sources = {module_name(path): path.read_text() for path in sorted(SOURCES.rglob("*.py"))}
    assert len(sources) > 30, "the list of modules looks wrong"

    problems = find_violations(sources)

    assert not problems, "\n".join(problems)


def test_private_packages_have_one_sentence_about_their_theme_and_no_code():
    for path in SOURCES.glob("_*/__init__.py"):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), f"{path} has no docstring"
        assert len(tree.body) == 1, f"{path} has code"
    for folder in SOURCES.glob("_*/"):
        assert folder.name == "__pycache__" or (folder / "__init__.py").exists(), folder


@pytest.mark.parametrize(
    ("module", "text", "wrong"),
    [
        ("cairn._base.tree", "from cairn._ranks.ranks import Ranks", "_base may not import"),
        ("cairn.errors", "def f():\n    from cairn import store", "_base may not import"),
        ("cairn.dcp._writer", "from cairn.torch._stager import X", "private to cairn.torch"),
        ("cairn.torch._saver", "from cairn.store import _ranks", "_ranks is private"),
        ("cairn.dcp._writer", "from . import _saves", "relative"),
        ("cairn.extra.thing", "from cairn import errors", "not in MAY_IMPORT"),
        ("cairn._ranks.ranks", "import cairn._ranks.ranks2", "a cycle: "),
        ("cairn._ranks.ranks", "def f():\n    import cairn._ranks.ranks2", None),
        ("cairn._ranks.ranks", "if TYPE_CHECKING:\n    import cairn._ranks.ranks2", None),
        ("cairn.dcp._writer", "from cairn.dcp import _saves", None),
    ],
)
def test_the_check_finds_wrong_imports_and_only_those(module, text, wrong):
    others = dict.fromkeys(
        ("cairn.errors", "cairn.store", "cairn.torch._stager", "cairn.dcp._saves"), ""
    )
    others["cairn._ranks.ranks2"] = "if True:\n    from cairn._ranks.ranks import x"
    others["cairn._ranks.ranks"] = ""

    problems = find_violations({**others, module: text})

    assert len(problems) == (wrong is not None), problems
    assert not wrong or wrong in problems[0]
