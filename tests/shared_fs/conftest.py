"""Two mounts of one directory, which are the file systems of two machines.

$CAIRN_MOUNTS names them ("/mnt/a/tests:/mnt/b/tests"); without it, the tests start a small CephFS
(tests/support/ceph_fs.sh), or are skipped where its packages are missing.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(REPOSITORY / "tests" / "python"), str(REPOSITORY / "tests" / "tools")]

CEPH_FS = REPOSITORY / "tests" / "support" / "ceph_fs.sh"


def pytest_collection_modifyitems(items):
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker("cephfs")


def _script(action, directory):
    done = subprocess.run([CEPH_FS, action, directory], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def mounts():
    """The two mounts."""
    if given := os.environ.get("CAIRN_MOUNTS"):
        first, second = given.split(":")
        yield pathlib.Path(first), pathlib.Path(second)
        return
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounts need root and /dev/fuse")
    if not (shutil.which("ceph-fuse") and shutil.which("ceph-mds")):
        pytest.skip("ceph-fuse or ceph-mds is not installed (tools/setup.sh --ceph)")
    with tempfile.TemporaryDirectory(prefix="ceph-", dir="/tmp") as parent:
        directory = pathlib.Path(parent) / "fs"
        _script("start", directory)
        try:
            yield directory / "node1", directory / "node2"
        finally:
            _script("stop", directory)


@pytest.fixture
def nodes(mounts):
    """The same new directory on both mounts."""
    first = pathlib.Path(tempfile.mkdtemp(prefix="test-", dir=mounts[0]))
    yield first, mounts[1] / first.name
    shutil.rmtree(first, ignore_errors=True)
