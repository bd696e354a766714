"""What others rely on, as lists of lines: names and parameters of Python, installed headers of C++,
verbs and options of the programs, and keys of their JSON. public/ has the recorded lists, and
docs/stability.md states what may change.

    .venv/bin/python tests/style/public_api.py     records them, after a change on purpose
"""

import ast
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "python"
BIN = ROOT / "build" / "bin"
STUB = ROOT / "build" / "python" / "cairn" / "_cairn.pyi"  # of the extension
RECORDED = Path(__file__).parent / "public"

# ---- Python, from its sources: nothing is imported, so no library of others is needed

MODULES = ["cairn", "cairn.convert", "cairn.dcp", "cairn.errors", "cairn.hf", "cairn.jax",
           "cairn.metrics", "cairn.reports", "cairn.state_dict", "cairn.torch"]  # fmt: skip
MODULES += [f"cairn.trainers.{path.stem}" for path in PYTHON.glob("cairn/trainers/[a-z]*.py")]


def parsed(module: str) -> ast.Module:
    path = PYTHON.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse((STUB if module == "cairn._cairn" else file).read_text())


def definition(module: str, name: str) -> tuple[str, ast.AST | None]:
    """The module that defines a name, and its function or class."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cairn"):
            for alias in node.names:
                if alias.name == "*" and (found := definition(node.module, name))[1]:
                    return found
                if (alias.asname or alias.name) == name:
                    return definition(node.module, alias.name)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return module, node
    return module, None


def parameters(function: ast.FunctionDef) -> str:
    """The parameters with their defaults. mypy checks their types."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(function.args)


def members(module: str, node: ast.ClassDef, name: str) -> list[str]:
    """The public members of a class, and of those of its bases that are Cairn's."""
    lines = [f"class {name}"]
    for base in node.bases:
        where, found = definition(module, ast.unparse(base).split("[")[0].rpartition(".")[2])
        if isinstance(found, ast.ClassDef):
            lines += members(where, found, name)[1:]
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            if item.name.startswith("_") and item.name not in ("__init__", "__call__"):
                continue
            decorators = {ast.unparse(decorator) for decorator in item.decorator_list}
            is_property = decorators & {"property", "functools.cached_property"}
            lines.append(f"{name}.{item.name}" + ("" if is_property else f"({parameters(item)})"))
        elif isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
            default = "" if item.value is None else f" = {ast.unparse(item.value)}"
            lines.append(f"{name}.{ast.unparse(item.target)}{default}")
    return lines


def python_names() -> list[str]:
    lines = []
    for module in MODULES:
        tree = parsed(module)
        public = [node.value for node in tree.body if isinstance(node, ast.Assign)
                  and ast.unparse(node.targets[0]) == "__all__"]  # fmt: skip
        names = ast.literal_eval(public[0]) if public else [
            node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and not node.name.startswith("_")
        ]  # fmt: skip
        for name in names:
            where, node = definition(module, name)
            if isinstance(node, ast.FunctionDef):
                lines.append(f"{module}.{name}({parameters(node)})")
            elif isinstance(node, ast.ClassDef):
                lines += members(where, node, f"{module}.{name}")
            else:
                lines.append(f"{module}.{name}")
    return sorted(set(lines))


# ---- C++


def headers() -> list[str]:
    """The installed headers, with a digest of what they declare: without comments and layout."""
    lines = []
    for layer in ("kv", "core", "cuda"):
        for path in sorted((ROOT / layer).rglob("*.h")):
            if "internal" not in path.parts:
                code = re.sub(r"//.*", "", path.read_text())
                digest = hashlib.sha256(" ".join(code.split()).encode()).hexdigest()
                lines.append(f"{path.relative_to(ROOT)} {digest[:16]}")
    return lines


# ---- Programs


def output(program: str, *words: object) -> str:
    command = [str(BIN / program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200).stdout


def verbs(program: str) -> list[str]:
    return [line.split("\t")[0] for line in output(program, "--complete", "").splitlines()]


def options() -> list[str]:
    """The verbs and their options, each with the name of its value, if it has one."""
    lines = []
    for program in ("kv-dump", "kv-admin", "kv-bench"):
        for verb in verbs(program):
            if verb.startswith("-"):
                continue
            text = output(program, verb, "--help")
            usage = re.search(r"^Usage: (.*)$", text, re.MULTILINE)
            lines.append(usage[1])
            for found in re.finditer(r"^  (-[^ \n]*(?: [A-Z][^ \n]*)?)", text, re.MULTILINE):
                lines.append(f"{program} {verb} {found[1]}")
    return lines


# Objects whose keys are not fixed: names that users chose, and dtypes.
NAMED = {"metrics", "dtypes", "tags"}


def paths(value: object, path: str) -> set[str]:
    """The paths of all keys. `[]` is an element of a list, and `*` any of NAMED."""
    if isinstance(value, dict):
        found = set()
        for key, item in value.items():
            name = "*" if path.rpartition(".")[2] in NAMED else key
            found |= {f"{path}.{name}"} | paths(item, f"{path}.{name}")
        return found
    if isinstance(value, list):
        return set().union(*(paths(item, f"{path}[]") for item in value))
    return set()


def json_keys() -> list[str]:
    """The keys that the verbs of kv-dump print for the golden stores."""
    lines = set()
    stores = sorted(path.with_suffix("") for path in (ROOT / "tests/golden").glob("v3-*.json"))
    for store in stores:
        steps = json.loads(output("kv-dump", "steps", store, "--json"))["steps"]
        first, last = (f"{store}@{steps[i]['step']}" for i in (0, -1))
        keys = json.loads(output("kv-dump", "keys", last, "--json"))["keys"]
        calls = [[verb, store] for verb in ("steps", "space", "segments", "verify", "log")]
        calls += [[verb, last] for verb in ("keys", "chunks", "fingerprint", "records")]
        calls += [["diff", first, last], ["diff", first, last, "--values"]]
        calls += [["keys", last, "--statistics"], [store]]
        for name in [key["fqn"] for key in keys[:3] + keys[-1:]]:
            calls += [["show", last, name], ["blame", last, name, "--values"]]
            calls += [["history", store, name]]
        for call in calls:
            text = output("kv-dump", *call, "--json")
            if text:
                verb = call[0] if len(call) > 1 else "overview"
                lines |= paths(json.loads(text), verb)
    with tempfile.TemporaryDirectory() as folder:
        damaged = shutil.copytree(ROOT / "tests/golden/v3-example", f"{folder}/store")
        for segment in Path(damaged).glob("segments/*.seg"):
            content = bytearray(segment.read_bytes())
            content[4096] ^= 1  # of the payload
            segment.write_bytes(content)
        lines |= paths(json.loads(output("kv-dump", "verify", damaged, "--json")), "verify")
    return sorted(lines)


LISTS = {"python": python_names, "headers": headers, "options": options, "json": json_keys}

if __name__ == "__main__":
    for name, list_lines in LISTS.items():
        (RECORDED / f"{name}.txt").write_text("".join(f"{line}\n" for line in list_lines()))
