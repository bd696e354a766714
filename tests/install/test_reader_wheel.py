"""The wheel of the reader in pure Python: what it contains, and that it prints and writes the same
in other time zones, encodings and working directories. Other byte orders are not run: a test shows
that no number is read or written in the order of the machine."""

import ast
import os
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from test_find_package import ROOT, run

READER = ROOT / "tools/reference_reader"
STORE = ROOT / "tests/golden/v3-example"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
        "--wheel-dir", dist, READER)
    (path,) = dist.glob("cairn_reader-*-py3-none-any.whl")
    return path


def test_reads_everywhere(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(site)
    assert names == {f"cairn_reader/{path.name}" for path in READER.glob("cairn_reader/*.py")}
    outputs = set()
    for zone, language, folder in (("UTC", "C.UTF-8", tmp_path), ("Asia/Kathmandu", "C", ROOT)):
        environment = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(site), "TZ": zone, "LC_ALL": language,
        }  # fmt: skip
        own = tmp_path / f"{zone.replace('/', ' ')}.safetensors"

        def read(*words):
            return run(sys.executable, "-m", "cairn_reader", *words, cwd=folder, env=environment)

        store = os.path.relpath(STORE, folder)
        shown = read(store) + read(f"{store}@latest") + read(store, "--verify")
        assert "2026-01-01 00:00:08" in shown and "6 steps, 0 errors" in shown
        assert read(f"{store}@7", "--key", "w") == f"{numpy.array(list(b'hello'), numpy.uint8)}\n"
        read(f"{store}@latest", "--safetensors", own)
        outputs.add((shown, own.read_bytes()))
    assert len(outputs) == 1


def test_numbers_have_a_byte_order():
    """All formats of struct and dtypes of numpy state theirs, and so do conversions of int."""
    formats, conversions, views = [], 0, []
    for path in READER.glob("cairn_reader/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            place = f"{path.name}:{node.lineno}"
            name, given = node.func.attr, [ast.unparse(argument) for argument in node.args]
            if name in ("pack", "pack_into", "unpack", "unpack_from", "iter_unpack", "Struct"):
                if ast.unparse(node.func.value) == "struct":
                    formats.append((place, given[0]))
            elif name in ("to_bytes", "from_bytes"):
                conversions += 1
                assert given[1] in ("'little'", "'big'"), place
            elif name in ("frombuffer", "view"):
                views.append((place, given[-1]))
    assert len(formats) > 10 and conversions > 5 and len(views) > 2
    from_table = ("record.numpy", "numpy.uint8")  # DTYPES, whose words have "<" or "|", and bytes
    for place, text in formats + [view for view in views if view[1] not in from_table]:
        assert text.lstrip("f'")[0] in "<>", (place, text)
