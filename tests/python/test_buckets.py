"""Stores in a bucket of a real S3 server: the lease, credentials, DCP, and kills of processes
and of the server.

CAIRN_SERVER_KILLS (3) is the number of times that the server is killed; CAIRN_BUCKET_ROUNDS (1)
multiplies the rounds of the C++ process suites; CAIRN_KILL_ROUNDS (6) is the number of rounds in
which ranks and the server are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import botocore.session
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import run_python, steps_of, wait_until
from process_suites import PROGRAMS, kills_of_ranks, run_suite, suites
from s3_server import SEAWEED

import cairn
from cairn import _cairn
from cairn.dcp import _register
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver


def test_a_close_that_cannot_remove_the_lease_can_be_repeated(bucket, faults):
    store = cairn.open(faults.address(bucket), mode="a")
    faults.refuse(1 << 30, "denied")
    with pytest.raises(cairn.Unavailable, match="403"):
        store.close()
    faults.refuse(0)
    with pytest.raises(cairn.Invalid, match="closed"):
        store.steps()
    store.close()
    store.close()
    run_python("import cairn, sys; cairn.open(sys.argv[1], mode='a').close()", bucket)


def test_a_mirror_continues_after_a_commit_of_unknown_outcome(bucket, faults, path):
    def has_steps(*steps: int) -> bool:
        assert process.poll() is None, process.stderr.read()
        with contextlib.suppress(cairn.NotFound):
            return steps_of(bucket) == list(steps)
        return False

    def is_root(method: str, name: str) -> bool:
        return method == "PUT" and "/roots/" in name

    with cairn.open(path, mode="a") as store:
        store.save(1, {"n": 1})
        words = [PROGRAMS / "kv-admin", "mirror", path, faults.address(bucket), "--follow"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_until(lambda: has_steps(1))
                faults.arm("lost", is_root, refused_after=1 << 30)
                store.save(2, {"n": 2})
                assert "it is unknown whether root" in process.stderr.readline()
                faults.refuse(0)
                store.save(3, {"n": 3})
                wait_until(lambda: has_steps(1, 2, 3))
                process.terminate()
                assert process.wait(timeout=1200) == 0
            finally:
                process.kill()


def test_credentials_of_a_function(bucket, server, monkeypatch):
    key = monkeypatch.delenv("AWS_ACCESS_KEY_ID") or server["AWS_ACCESS_KEY_ID"]
    secret = monkeypatch.delenv("AWS_SECRET_ACCESS_KEY") or server["AWS_SECRET_ACCESS_KEY"]
    calls = []

    def credentials() -> dict:
        calls.append(1)
        return {"access_key_id": key, "secret_access_key": secret}

    with cairn.open(bucket, "a", credentials=credentials) as store:
        store.save(1, {"n": 1})
    assert calls

    def raises() -> dict:
        raise RuntimeError(secret)

    wrong = "a-wrong-secret-0123456789"
    for function in (
        raises,
        lambda: {"access_key_id": key},
        lambda: {"access_key_id": key, "secret_access_key": wrong},
    ):
        with pytest.raises(cairn.Error) as raised:
            cairn.open(bucket, credentials=function)
        assert secret not in str(raised.value)
        assert wrong not in str(raised.value)


def test_dcp_finds_its_marker_and_its_steps_in_a_bucket(bucket, monkeypatch):
    for module in (state_dict_loader, state_dict_saver):
        monkeypatch.setattr(module, "_storage_setup", module._storage_setup)
    monkeypatch.setattr(_register, "_creates", False)
    cairn.dcp.register(new=True)

    dcp.save({"n": 1}, checkpoint_id=bucket)
    dcp.save({"n": 2}, checkpoint_id=bucket)

    assert b"This is a Cairn store" in _cairn.read_object(bucket, ".metadata")
    loaded = {"n": 0}
    dcp.load(loaded, checkpoint_id=bucket)
    assert loaded == {"n": 2} and steps_of(bucket) == [0]


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


ROUNDS = int(os.environ.get("CAIRN_BUCKET_ROUNDS", "1"))
KILL_ROUNDS = int(os.environ.get("CAIRN_KILL_ROUNDS", "6"))

SUITES = suites(ROUNDS)


@pytest.mark.timeout(1500 + 120 * ROUNDS)
@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(suite, marks=[pytest.mark.slow] if suite == "kv_crash_test" else [])
        for suite in SUITES
    ],
)
def test_process_suite_passes(server, suite):
    run_suite(suite, whole_bucket(server), server, SUITES[suite])


def whole_bucket(server: dict[str, str]) -> str:
    return f"s3://{server['CAIRN_TEST_S3_BUCKET']}"


@pytest.mark.slow
@pytest.mark.timeout(1500 + 60 * KILL_ROUNDS)
def test_every_acknowledged_step_survives_kills_of_ranks_and_of_the_server(folder, server):
    settings = {
        **kills_of_ranks(KILL_ROUNDS),
        "CAIRN_S3_TIMEOUT": "10",
        "CAIRN_TEST_SERVER_KILL": f"{SEAWEED} kill {folder} >&2",
        "CAIRN_TEST_SERVER_RESTART": f"{SEAWEED} restart {folder} >&2",
    }
    run_suite("mesh_kills_test", whole_bucket(server), server, settings)
