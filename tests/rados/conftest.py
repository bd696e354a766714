"""The cluster of the tests in this folder."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
CEPH = TESTS / "support/ceph.sh"
sys.path.append(str(TESTS / "python"))


@pytest.fixture(scope="module")
def cluster():
    """The directory of the cluster, and the environment with which clients reach it."""
    path = os.environ["PATH"] + ":/usr/sbin"
    if not (shutil.which("rados") and shutil.which("ceph-osd", path=path)):
        pytest.skip("rados or ceph-osd is not installed (tools/setup.sh --ceph)")
    with tempfile.TemporaryDirectory(prefix="ceph-", dir="/tmp") as parent:
        folder = pathlib.Path(parent) / "c"
        subprocess.run([CEPH, "start", folder], check=True, capture_output=True, timeout=300)
        try:
            lines = (folder / "environment").read_text().splitlines()
            yield folder, dict(line.removeprefix("export ").split("=", 1) for line in lines)
        finally:
            subprocess.run([CEPH, "stop", folder], check=True, capture_output=True, timeout=60)
