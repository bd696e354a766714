"""The extension uses only the stable ABI of Python, for which the wheel is built."""

import os
import subprocess
import sysconfig
from pathlib import Path

import nanobind
import pytest
from test_find_package import ROOT


@pytest.mark.long
def test_every_source_compiles_for_the_stable_abi():
    unit = ROOT / "build" / "stable_abi.cc"  # always the same, for ccache
    sources = sorted(Path(ROOT, "python/src").glob("*.cc"))
    unit.write_text("".join(f'#include "{path}"\n' for path in sources))
    includes = [ROOT, ROOT / "build/schema/generated", nanobind.include_dir()]
    includes.append(sysconfig.get_path("include"))
    words = ["ccache", "g++", "-std=c++23", "-O0", "-c", "-w", "-DPy_LIMITED_API=0x030a0000"]
    words.append('-DCAIRN_VERSION="0"')
    words += ["-DNB_BACKEND_MODULE=nanobind_backend", "-DNB_BACKEND_PYPI=nanobind-backend"]
    words += [f"-I{path}" for path in includes]
    ended = subprocess.run(
        [*words, unit, "-o", unit.with_suffix(".o")], capture_output=True, text=True,
        env=os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"},
    )
    assert ended.returncode == 0, ended.stderr
