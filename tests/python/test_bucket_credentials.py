"""Credentials of programs and of botocore for a store in a bucket of a real S3 server."""

from __future__ import annotations

import json
import sys

import botocore.session
import cairn
import pytest
import torch
from s3_server import folder, server  # noqa: F401 - fixtures


@pytest.fixture
def profiles(server, monkeypatch, tmp_path):
    """The configuration has two profiles, and the environment no keys."""
    for name, value in server.items():
        if "ACCESS_KEY" in name:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    document = {
        "Version": 1,
        "AccessKeyId": server["AWS_ACCESS_KEY_ID"],
        "SecretAccessKey": server["AWS_SECRET_ACCESS_KEY"],
    }
    (tmp_path / "document").write_text(json.dumps(document))
    process = f"{sys.executable} -c 'print(open(\"{tmp_path}/document\").read())'"
    (tmp_path / "config").write_text(
        f"[profile process]\ncredential_process = {process}\n"
        "[profile role]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = process\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def save_and_read(address, **options):
    with cairn.open(address, mode="a", **options) as store:
        store.save(1, {"t": torch.arange(1000.0)})
        assert store.read()["t"].sum() == 499500


def test_a_program_supplies_credentials(server, profiles):
    save_and_read(f"s3://{server['CAIRN_TEST_S3_BUCKET']}/process?profile=process")


def test_a_session_of_botocore_supplies_credentials(server, profiles, tmp_path):
    session = botocore.session.Session(profile="process")
    bucket = f"s3://{server['CAIRN_TEST_S3_BUCKET']}"
    save_and_read(f"{bucket}/session", credentials=session)
    mirror = cairn.Mirror(f"{bucket}/mirror", credentials=session)
    with cairn.open(tmp_path / "store", mode="a") as store:
        store.save(1, {"t": torch.ones(3)}, mirror=mirror)
        store.wait_mirrored()
    assert cairn.open(str(mirror), credentials=session).steps() == [1]


def test_a_role_names_both(server, profiles):
    with pytest.raises(cairn.Invalid, match=r"role_arn.*export-credentials.*boto3") as caught:
        cairn.open(f"s3://{server['CAIRN_TEST_S3_BUCKET']}/role?profile=role", mode="a")
    assert server["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


def test_other_objects_are_refused(tmp_path):
    with pytest.raises(cairn.Invalid, match="credentials=str: a function or a session"):
        cairn.open(tmp_path, credentials="role")
