"""The fixtures `server` and `bucket`: a real S3 server. Test modules import them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SEAWEED = Path(__file__).resolve().parents[1] / "support/seaweed.sh"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The environment with which clients reach the server."""
    folder = tmp_path_factory.mktemp("s3") / "server"
    subprocess.run([SEAWEED, "start", folder], check=True, capture_output=True, timeout=120)
    lines = (folder / "environment").read_text().splitlines()
    yield dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)
    subprocess.run([SEAWEED, "stop", folder], check=True, capture_output=True, timeout=60)


@pytest.fixture
def bucket(server, monkeypatch, request):
    """The address of an empty place, with credentials in the environment."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server['CAIRN_TEST_S3_BUCKET']}/{request.node.name}"
