"""The fixture `faults`: a proxy before the real S3 server of s3_server.py that refuses requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_NOT_FORWARDED = {"connection", "content-length", "expect", "keep-alive", "transfer-encoding"}


class Faults(ThreadingHTTPServer):
    """Forwards all requests except those that it refuses with status 503."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.server = urlsplit(endpoint).netloc
        self.refused = 0
        self._to_refuse = 0
        self._lock = threading.Lock()

    def address(self, store: str) -> str:
        """The address of a store of the server, through the proxy."""
        return f"{store}?endpoint=http://127.0.0.1:{self.server_port}"

    def refuse(self, count: int) -> None:
        """Refuses the next requests."""
        with self._lock:
            self._to_refuse = count

    def is_refused(self) -> bool:
        with self._lock:
            if self._to_refuse == 0:
                return False
            self._to_refuse -= 1
            self.refused += 1
            return True


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faults

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.is_refused():
            self._respond(503, [], _BUSY)
            return
        # The signature covers the header Host, which is that of the proxy.
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != "expect"
        }
        connection = http.client.HTTPConnection(self.server.server, timeout=60)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        data = response.read()
        self._respond(response.status, response.getheaders(), data)
        connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward

    def _respond(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if self.command == "HEAD" and name.lower() == "content-length":
                length = value
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def faults(server: dict[str, str]) -> Iterator[Faults]:
    with Faults(server["AWS_ENDPOINT_URL_S3"]) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()
