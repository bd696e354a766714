"""What `import cairn` loads, and what it loads later."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cairn_testing import run_python

import cairn

ROOT = Path(__file__).resolve().parents[2]

# Each takes milliseconds to import, and is needed by few processes.
LATER = (
    "numpy",
    "torch",
    "cairn.reports",
    "cairn._load.conversions",
    "cairn._load.slices",
    "cairn._ranks.nccl",
    "cairn._mirror.worker",
    "cairn._mirror.options",
    "cairn._save.pickles",
    "concurrent.futures",
    "ctypes",
    "dataclasses",
    "datetime",
    "hashlib",
    "heapq",
    "inspect",
    "json",
    "logging",
    "pickle",
    "socket",
    "zlib",
)


def test_importing_cairn_loads_no_module_that_can_wait():
    source = "import sys, cairn; print(*(name for name in sys.argv[1:] if name in sys.modules))"

    # Without site, so that packages of the environment load nothing either.
    path = f"import sys; sys.path = {sys.path!r}; "
    command = [sys.executable, "-S", "-c", path + source, *LATER]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1200)

    assert (result.stdout.strip(), result.stderr) == ("", "")


def test_the_version_is_that_of_the_distribution():
    for file in ("pyproject.toml", "tools/reference_reader/pyproject.toml"):
        assert tomllib.loads((ROOT / file).read_text())["project"]["version"] == cairn.__version__


def test_the_other_project_named_cairn_is_refused(tmp_path):
    """Its files in the folder of the package: cli.py and versions.py."""
    package = Path(cairn.__file__).parent
    (tmp_path / "cairn").mkdir()
    for path in package.iterdir():
        (tmp_path / "cairn" / path.name).symlink_to(path)
    initial = tmp_path / "cairn" / "__init__.py"
    initial.unlink()
    shutil.copy(package / "__init__.py", initial)
    command = [sys.executable, "-c", "import cairn"]
    for is_there in (False, True):
        if is_there:
            (tmp_path / "cairn" / "versions.py").touch()
        found = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert found.returncode == is_there, found.stderr
        assert ("pip uninstall cairn" in found.stderr) == is_there


def test_plain_values_are_saved_and_loaded_without_numpy_and_torch_and_libcurl(path):
    run_python(
        """
        import sys, cairn
        with cairn.open(sys.argv[1], mode="a") as store:
            state = {"epoch": 3, "names": ["a", b"b"], "ratio": (0.5, None)}
            store.save(1, state)
            assert store.read() == state
            loaded = {"epoch": 0, "names": ["", b""], "ratio": (0.0, None)}
            store.load(loaded)
            assert loaded == state
            assert store.keys()["epoch"].value == 3
        assert not {"numpy", "torch"} & set(sys.modules)
        with open("/proc/self/maps") as maps:
            assert "/libcurl" not in maps.read()
        """,
        path,
        fresh=True,
    )


def test_a_process_that_has_not_imported_numpy_reads_arrays(store, path):
    store.save(1, {"array": np.arange(6.0).reshape(2, 3), "scalar": np.float32(2.5)})

    run_python(
        """
        import sys, cairn
        store = cairn.open(sys.argv[1])
        assert "numpy" not in sys.modules
        state, part = store.read(), store.read_slice("array", [1, (0, 2)])
        assert state["array"].tolist() == [[0, 1, 2], [3, 4, 5]] and part.tolist() == [3, 4]
        assert state["scalar"] == 2.5 and type(state["scalar"]).__name__ == "float32"
        assert store.read("array", mmap=True, flat=True)["array"].sum() == 15
        """,
        path,
        fresh=True,
    )


def test_every_public_name_is_available_in_a_new_process():
    run_python(
        """
        import cairn
        names = set(cairn.__all__)
        assert names <= set(dir(cairn)), names - set(dir(cairn))
        star = {}
        exec("from cairn import *", star)
        assert names <= set(star), names - set(star)
        assert cairn.SaveReport is cairn.reports.SaveReport is star["SaveReport"]
        assert cairn.Mirror("a").every == 1
        """,
        fresh=True,
    )


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'cairn' has no attribute 'savereport'"):
        cairn.savereport  # noqa: B018
