"""The wheel of tools/build-wheel.sh in a venv that has only torch, and in a root without libraries.

Building it takes minutes, so these tests are slow. CAIRN_WHEEL names a wheel that exists already.
Of one for aarch64, the files are checked here, and test_wheel_aarch64.py runs them.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_find_package import ROOT, run
from test_release import LICENCES

PROGRAMS = ("kv-dump", "kv-admin", "kv-bench")
# What every Linux distribution with glibc has (PEP 600).
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
                    "libgcc_s.so.1"}
OLDEST_GLIBC = (2, 28)
SAVE_AND_LOAD = """
import sys, {library}, cairn
store = cairn.open(sys.argv[1], mode="a")
store.save(7, {{"model": {{"weight": {library}.arange(64).reshape(8, 8)}}, "epoch": 3}})
target = {{"model": {{"weight": {library}.zeros((8, 8), dtype={library}.int64)}}, "epoch": 0}}
store.load(target)
assert target["epoch"] == 3 and int(target["model"]["weight"].sum()) == 2016, target
store.close()
from cairn import _cairn
print(_cairn.__file__, _cairn.device_problem())
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def bare_environment() -> dict[str, str]:
    hidden = {"LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    if built := os.environ.get("CAIRN_WHEEL"):
        return Path(built).resolve()
    dist = tmp_path_factory.mktemp("dist")
    run(ROOT / "tools/build-wheel.sh", dist)
    (path,) = dist.glob("cairn_ckpt-*x86_64.whl")
    return path


def skip_unless_it_runs(wheel: Path) -> None:
    if not wheel.name.endswith("x86_64.whl"):
        pytest.skip(f"{wheel.name} is for another architecture")


def top_level_entries(package: str, seen: set[str]) -> set[Path]:
    """The entries of site-packages that belong to a package and to what it requires."""
    name = re.split(r"[ ;<>=!~\[(]", package, maxsplit=1)[0]
    if name.lower() in seen or "extra ==" in package:
        return set()
    seen.add(name.lower())
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return set()  # required on other platforms only
    entries = {Path(found.locate_file(file.parts[0])) for file in found.files or ()
               if file.parts[0] != ".."}
    for requirement in found.requires or ():
        entries |= top_level_entries(requirement, seen)
    return entries


@pytest.fixture(scope="session")
def venv(wheel, tmp_path_factory) -> Path:
    """A venv with the wheel, what the wheel requires, and torch, and nothing else."""
    skip_unless_it_runs(wheel)
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    seen: set[str] = set()
    for package in ("torch", "numpy", "nanobind-backend"):
        for entry in top_level_entries(package, seen):
            (site / entry.name).symlink_to(entry)
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--no-index",
        "--no-deps", wheel)
    return folder


def test_the_wheel_has_the_stable_abi_and_runs_on_any_linux_with_its_glibc(wheel):
    name = r"cairn_ckpt-[\d.]+(rc\d+)?-cp310-abi3-manylinux_2_28_(x86_64|aarch64)\.whl"
    assert re.fullmatch(name, wheel.name)
    assert wheel.stat().st_size <= 18_000_000
    run(sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", wheel)


def test_the_wheel_contains_types_and_programs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith("cairn_ckpt.libs")]
    assert {"cairn/py.typed", "cairn/_cairn.pyi", "cairn/_cairn.abi3.so"} <= set(names)
    (scripts,) = {Path(name).parent for name in names if re.search("/scripts/.", name)}
    for program in PROGRAMS:
        assert f"{scripts}/{program}" in names
    (metadata,) = {name for name in names if name.endswith(".dist-info/METADATA")}
    licences = [f"tools/wheel/licenses/{path.name}" for path in LICENCES.iterdir()]
    for name in ("LICENSE", "NOTICE", *licences):
        assert metadata.replace("METADATA", f"licenses/{name}") in names
    assert not [name for name in names if "CMakeLists" in name or name.endswith((".a", ".h"))]


def test_the_files_need_only_symbols_of_the_oldest_glibc_and_of_python(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    files = [*tmp_path.rglob("*.so"), *tmp_path.rglob("scripts/*")]
    assert len(files) == 1 + len(PROGRAMS)
    for file in files:
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", file)))
        loader = {name for name in needed if name.startswith("ld-linux-")}
        assert needed - loader <= SYSTEM_LIBRARIES, file
        for line in run("nm", "--dynamic", "--undefined-only", file).splitlines():
            kind, symbol = line.split()
            name, _, version = symbol.partition("@")
            if version.startswith("GLIBC_"):
                numbers = tuple(int(number) for number in version[len("GLIBC_"):].split("."))
                assert numbers <= OLDEST_GLIBC, (file, symbol)
            elif not version:  # weak symbols may be absent
                assert kind in "wv" or name.lstrip("_").startswith("Py"), (file, symbol)


def test_the_check_after_linking_refuses_a_symbol_without_a_version(wheel, tmp_path):
    check = ROOT / "tools/wheel/check_symbols.sh"
    run(check, wheel)
    unversioned = tmp_path / "unversioned.whl"
    source = tmp_path / "module.c"
    source.write_text("int nowhere(void); int exported(void) { return nowhere(); }")
    run("gcc", "-shared", "-fPIC", source, "-o", tmp_path / "module.so")
    shutil.copy(wheel, unversioned)
    with zipfile.ZipFile(unversioned, "a") as archive:
        archive.write(tmp_path / "module.so", "cairn/module.so")
    refused = subprocess.run([check, unversioned], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "cairn/module.so needs nowhere" in refused.stderr


def test_a_venv_with_only_torch_saves_loads_and_has_the_programs(venv, tmp_path):
    code = SAVE_AND_LOAD.format(library="torch")
    output = run(venv / "bin/python", "-c", code, tmp_path / "store", env=bare_environment(),
                 cwd=tmp_path)
    assert output.startswith(str(venv)), output
    # The programs are console commands.
    path = f"{venv}/bin:/usr/bin:/bin"
    environment = {**bare_environment(), "PATH": path}
    assert "model.weight" in run("kv-dump", "keys", tmp_path / "store", env=environment)
    assert run("kv-admin", "--version", env=environment)
    assert "commit" in run("kv-bench", "--help", env=environment)
    (tmp_path / "link").symlink_to(venv / "bin/kv-dump")  # as pipx makes one
    assert run(tmp_path / "link", "--version", env=environment)


@pytest.mark.parametrize(
    ("suite", "program", "python"),
    [("bookworm", "python3", "3.11"), ("trixie", "python3", "3.13"), ("sid", "python3.14", "3.14"),
     ("sid", "python3.15", "3.15"), ("jammy", "python3", "3.10"), ("noble", "python3", "3.12")],
)  # fmt: skip
def test_a_root_without_libraries_saves_loads_and_dumps(wheel, suite, program, python, tmp_path):
    """The smallest Debian or Ubuntu with Python: the abi3 module also runs in a newer Python."""
    skip_unless_it_runs(wheel)
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("needs root and mmdebstrap")
    root = Path(os.environ.get(f"CAIRN_BARE_ROOT_{suite.upper()}", tmp_path / "root"))
    if not (root / "usr/bin" / program).exists():
        includes = f"--include={program},libstdc++6"  # numpy needs the library
        old_list = '--aptopt=Acquire::Check-Valid-Until "false"'  # a mirror may be weeks behind
        made = subprocess.run(["mmdebstrap", "--variant=minbase", includes, old_list, suite,
                               str(root)], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"mmdebstrap made no {suite}: {made.stderr[-300:]}")
    assert not list((root / "usr").rglob("librocksdb*"))
    packages = root / "opt/packages"
    shutil.rmtree(packages, ignore_errors=True)  # of an earlier test in the same root
    shutil.rmtree(root / "tmp/store", ignore_errors=True)
    run(sys.executable, "-m", "pip", "install", "--target", packages, "--python-version", python,
        "--platform", "manylinux_2_28_x86_64", "--platform", wheel.stem.split("-")[-1],
        "--platform", "manylinux_2_27_x86_64", "--platform", "manylinux_2_17_x86_64",
        "--ignore-requires-python",  # of pip's Python
        "--only-binary=:all:", wheel)
    start = 'mount -t proc proc "$0/proc" && exec chroot "$0" /usr/bin/env -i "$@"'
    bare = ["unshare", "--mount", "sh", "-c", start, root, "PATH=/usr/bin:/bin",
            "PYTHONPATH=/opt/packages"]
    output = run(*bare, program, "-c", SAVE_AND_LOAD.format(library="numpy"), "/tmp/store")
    assert "_cairn.abi3.so" in output
    assert "model.weight" in run(*bare, "/opt/packages/bin/kv-dump", "keys", "/tmp/store")
    assert "ok" in run(*bare, "/opt/packages/bin/kv-dump", "verify", "/tmp/store")
