"""The fixtures `folder`, `server` and `bucket`: a real S3 server per test process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SEAWEED = Path(__file__).resolve().parents[1] / "support/seaweed.sh"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The directory of the server, for seaweed.sh."""
    folder = tmp_path_factory.mktemp("s3") / "server"
    subprocess.run([SEAWEED, "start", folder], check=True, capture_output=True, timeout=600)
    yield folder
    subprocess.run([SEAWEED, "stop", folder], check=True, capture_output=True, timeout=600)


@pytest.fixture(scope="session")
def server(folder):
    """The environment with which clients reach the server."""
    lines = (folder / "environment").read_text().splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def bucket(server, monkeypatch, request):
    """The address of an empty place, with credentials in the environment."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server['CAIRN_TEST_S3_BUCKET']}/{request.module.__name__}/{request.node.name}"
