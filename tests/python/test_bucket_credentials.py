"""Credentials of roles and of SSO for a store in a bucket of a real S3 server.

The services of AWS are a server in the test, which computes the signatures again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import cairn
import pytest
import torch
from s3_server import folder, server  # noqa: F401 - fixtures

SECRETS = {"AK-base": "SECRET-base"}


def signature_of(request: BaseHTTPRequestHandler, body: bytes) -> str:
    """The signature that the request should have, version 4."""
    fields = request.headers["Authorization"].removeprefix("AWS4-HMAC-SHA256 ").split(", ")
    parts = dict(field.strip().split("=", 1) for field in fields)
    key_id, date, region, service, end = parts["Credential"].split("/")
    names = parts["SignedHeaders"].split(";")
    url = urlsplit(request.path)
    canonical = "\n".join(
        [
            request.command,
            url.path,
            url.query,
            *(f"{name}:{request.headers[name].strip()}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            request.headers["X-Amz-Date"],
            f"{date}/{region}/{service}/{end}",
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{SECRETS[key_id]}".encode()
    for part in (date, region, service, end):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Services(BaseHTTPRequestHandler):
    """STS and SSO, which supply the keys of the S3 server."""

    keys: dict[str, str]
    log: list[str]

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if self.path.startswith("/federation/credentials?"):
            is_known = self.headers["x-amz-sso_bearer_token"] == "TOKEN-sso"
            self._reply(200 if is_known else 401, self._sso())
            self.log.append(f"sso {query['account_id']} {query['role_name']}")
            return
        given = self.headers["Authorization"].rpartition("Signature=")[2]
        assert query["Action"] == "AssumeRole"
        self._reply(200 if given == signature_of(self, b"") else 403, self._sts())
        self.log.append(f"sts {query['RoleArn']} {query['RoleSessionName']}")

    def _sts(self) -> str:
        return (
            "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>{self.keys['AWS_ACCESS_KEY_ID']}</AccessKeyId>"
            f"<SecretAccessKey>{self.keys['AWS_SECRET_ACCESS_KEY']}</SecretAccessKey>"
            "<SessionToken></SessionToken><Expiration>2040-01-02T03:04:05Z</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )

    def _sso(self) -> str:
        credentials = {
            "accessKeyId": self.keys["AWS_ACCESS_KEY_ID"],
            "secretAccessKey": self.keys["AWS_SECRET_ACCESS_KEY"],
            "sessionToken": "",
            "expiration": 2209089845000,
        }
        return json.dumps({"roleCredentials": credentials})

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def services(server, monkeypatch, tmp_path):
    """The class of a running server. The home directory has two profiles, and no keys of S3."""
    handler = type("Running", (Services,), {"keys": server, "log": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{http.server_address[1]}"
    for name, value in server.items():
        if "ACCESS_KEY" in name:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO"):
        monkeypatch.setenv(name, endpoint)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".aws/sso/cache"
    cache.mkdir(parents=True)
    (tmp_path / ".aws/config").write_text(
        "[profile base]\naws_access_key_id = AK-base\naws_secret_access_key = SECRET-base\n"
        "[profile role]\nrole_arn = arn:aws:iam::1:role/r+x\nsource_profile = base\n"
        "[sso-session company]\nsso_start_url = https://company.example/start\nsso_region = r\n"
        "[profile sso]\nsso_session = company\nsso_account_id = 12\nsso_role_name = a role\n"
    )
    token = {
        "startUrl": "https://company.example/start",
        "accessToken": "TOKEN-sso",
        "expiresAt": "2040-01-02T03:04:05Z",
    }
    (cache / "token.json").write_text(json.dumps(token))
    yield handler
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.mark.parametrize(
    ("profile", "log"),
    [("role", "sts arn:aws:iam::1:role/r+x cairn"), ("sso", "sso 12 a role")],
)
def test_a_profile_with_a_role_opens_a_store(server, services, profile, log):
    address = f"s3://{server['CAIRN_TEST_S3_BUCKET']}/{profile}?profile={profile}"
    with cairn.open(address, mode="a") as store:
        store.save(1, {"t": torch.arange(1000.0)})
        assert store.read()["t"].sum() == 499500
    assert services.log == [log]  # credentials are kept until they expire


def test_a_wrong_secret_is_refused_and_not_named(server, services):
    path = os.path.join(os.environ["HOME"], ".aws/config")
    text = open(path).read().replace("SECRET-base", "SECRET-other")
    open(path, "w").write(text)
    with pytest.raises(cairn.Error, match="403") as caught:
        cairn.open(f"s3://{server['CAIRN_TEST_S3_BUCKET']}/role?profile=role", mode="a")
    assert "SECRET" not in str(caught.value)
    assert server["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
