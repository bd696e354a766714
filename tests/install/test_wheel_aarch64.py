"""The wheel for aarch64 under QEMU's user-mode emulation, in a root that has only Python: stores of
each architecture are read by the other one, with the same bytes, statistics and output.

CAIRN_WHEEL_AARCH64 names the wheel. The other side is the build that is tested here. What emulation
does not show is in docs/releasing.md.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_find_package import BUILD, ROOT, run
from test_wheel import SAVE_AND_LOAD

QEMU = shutil.which("qemu-aarch64-static") or "qemu-aarch64-static"
SCRIPT = ROOT / "tests/install/portable_store.py"
GOLDEN = sorted(path.with_suffix("") for path in (ROOT / "tests/golden").glob("*.json"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def refuse_to_run() -> None:
    if not os.environ.get("CAIRN_WHEEL_AARCH64"):
        pytest.skip("CAIRN_WHEEL_AARCH64 names no wheel")
    if os.geteuid() != 0 or not all(map(shutil.which, (QEMU, "mmdebstrap"))):
        pytest.skip("needs root, mmdebstrap and qemu-user-static")


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """A root of Debian for aarch64 with Python, the wheel and what it requires."""
    refuse_to_run()
    wheel = Path(os.environ["CAIRN_WHEEL_AARCH64"]).resolve()
    root = tmp_path_factory.mktemp("aarch64") / "root"
    # Nothing is configured, because this architecture's scripts cannot run.
    made = subprocess.run(["mmdebstrap", "--arch=arm64", "--variant=extract",
                           "--include=python3,libstdc++6", "bookworm", str(root)],
                          capture_output=True, text=True)  # fmt: skip
    if made.returncode != 0:
        pytest.skip(f"mmdebstrap made no root: {made.stderr[-300:]}")
    platforms = [f"--platform=manylinux_2_{version}_aarch64" for version in (17, 26, 27, 28)]
    run(sys.executable, "-m", "pip", "install", "--target", root / "opt/packages",
        "--python-version", "3.11", *platforms, "--only-binary=:all:", wheel, "xxhash",
        "zstandard")  # fmt: skip
    shutil.copytree(ROOT / "tools/reference_reader/cairn_reader",
                    root / "opt/packages/cairn_reader")  # fmt: skip
    shutil.copy(QEMU, root / "qemu")
    for path in (SCRIPT, *GOLDEN):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, root / "tmp" / path.name)
    return root


def run_emulated(root: Path, *words: object) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin", "PYTHONPATH": "/opt/packages", "LC_ALL": "C.UTF-8"}
    return run("chroot", root, "/qemu", *words, env=environment)


def run_script(*words: object) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(
        [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "tools/reference_reader")])}
    return run(sys.executable, SCRIPT, *words, env=environment)


@pytest.fixture(scope="session")
def stores(root) -> dict[str, Path]:
    """The same store, written by each architecture. Both are in the root."""
    run_emulated(root, "/usr/bin/python3", "/tmp/portable_store.py", "write", "/tmp/aarch64")
    run_script("write", root / "tmp/x86_64")
    return {name: root / "tmp" / name for name in ("aarch64", "x86_64")}


def test_it_saves_and_loads(root):
    output = run_emulated(root, "/usr/bin/python3", "-c", SAVE_AND_LOAD.format(library="numpy"),
                          "/tmp/store")  # fmt: skip
    assert "_cairn.abi3.so" in output
    for program in ("kv-dump", "kv-admin", "kv-bench"):
        assert run_emulated(root, f"/opt/packages/bin/{program}", "--version")


def test_both_architectures_read_the_same_in_stores_of_both(root, stores):
    found = {}
    for verb in ("read", "reader"):
        emulated = (verb, "/tmp/aarch64", "/tmp/x86_64")
        found[verb, "aarch64"] = json.loads(
            run_emulated(root, "/usr/bin/python3", "/tmp/portable_store.py", *emulated))
        found[verb, "x86_64"] = json.loads(run_script(verb, *stores.values()))

    assert found["read", "aarch64"] == found["read", "x86_64"]
    of_aarch64, of_x86_64 = found["read", "x86_64"]
    for step, expected in of_x86_64.items():
        # Also the bits of the means, in statistics and of a merge.
        assert of_aarch64[step] == expected, step
        assert expected["statistics"] or step == "5"
    leaves = [{step: {"leaves": of_x86_64[step]["leaves"]} for step in of_x86_64}] * 2
    assert found["reader", "aarch64"] == found["reader", "x86_64"] == leaves


def dump(root: Path, architecture: str, verb: str, store: str, *words: str) -> str:
    if architecture == "aarch64":
        return run_emulated(root, "/opt/packages/bin/kv-dump", verb, f"/tmp/{store}", *words)
    return run(BUILD / "bin/kv-dump", verb, root / f"tmp/{store}", *words).replace(str(root), "")


def test_kv_dump_prints_the_same(root, stores):
    """Of golden stores, for which there are digests, all dtypes, deltas and statistics."""
    for store in (*stores, *(path.name for path in GOLDEN)):
        prints = functools.partial(dump, root, "aarch64"), functools.partial(dump, root, "x86_64")
        for words in (("keys", store, "--statistics", "--json"), ("chunks", store, "--json"),
                      ("steps", store, "--json")):  # fmt: skip
            ours, others = (show(*words) for show in prints)
            assert ours == others, words
        for show in prints:
            assert "ok" in show("verify", store)


@pytest.mark.parametrize("store", ["v3-dtypes", "v3-bcomplex32", "v3-dense"])
def test_elements_of_every_dtype_are_the_same_numbers(root, store):
    listed = json.loads(dump(root, "x86_64", "keys", store, "--json"))
    names = [key["fqn"] for key in listed["keys"]]
    assert len(names) > 30 or store != "v3-dtypes"
    for name in names:
        # Values, and statistics with the standard deviation.
        words = ("show", store, name, "--json", "--all")
        assert dump(root, "aarch64", *words) == dump(root, "x86_64", *words)
