"""A project outside the tree finds the installed Cairn, links it, saves a tensor and loads it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CAIRN_BUILD_DIR", ROOT / "build"))


def run(*command: object, **options) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install_and_build(source: Path, folder: Path) -> tuple[Path, Path]:
    """Installs Cairn and builds a project with it. Returns where both are."""
    prefix, build = folder / "prefix", folder / "build"
    version = re.compile(r'^version = "(\d+)\.(\d+)', re.MULTILINE)
    major, minor = version.search((ROOT / "pyproject.toml").read_text()).groups()
    run("cmake", "--install", BUILD, "--prefix", prefix)
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Release", f"-DCAIRN_WANTED={major}.{minor}")
    run("cmake", "--build", build)
    return prefix, build


def test_a_consumer_builds_against_the_installed_package(tmp_path):
    store = tmp_path / "store"
    prefix, build = install_and_build(ROOT / "tests/install/consumer", tmp_path)
    output = run(build / "consumer", store)

    saved, gpus = output.splitlines()
    assert saved == "step 100, 24 bytes written, read back the same"
    # The CUDA layer is linked where the package has it, and says itself why there is no GPU.
    has_cuda = any(prefix.rglob("libcairn_cuda.a")) and shutil.which("nvcc") is not None
    assert ("no CUDA layer" in gpus) == (not has_cuda), gpus
    keys = json.loads(run(prefix / "bin/kv-dump", "keys", store, "--json"))
    assert "model.weight" in json.dumps(keys)


def test_installed_files_do_not_point_into_the_source_tree(tmp_path):
    run("cmake", "--install", BUILD, "--prefix", tmp_path, "--component", "cairn_development")

    texts = [p for p in tmp_path.rglob("*") if p.suffix in {".h", ".cmake"}]
    assert len(texts) > 20
    for path in texts:
        assert str(ROOT) not in path.read_text(), path
    includes = {m for p in texts for m in re.findall(r'#include "([^"]+)"', p.read_text())}
    missing = {i for i in includes if not any(tmp_path.rglob(i))}
    assert missing <= {"flatbuffers/flatbuffers.h"}
