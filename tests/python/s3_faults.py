"""The fixture `faults`: a proxy before the real S3 server of s3_server.py that injects faults."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code>'
    b"<Message>Access Denied.</Message></Error>"
)
_NOT_FORWARDED = {"connection", "content-length", "expect", "keep-alive", "transfer-encoding"}


class Faults(ThreadingHTTPServer):
    """Forwards all requests except those that it refuses, with status 503 or 403, and performs
    others without a response."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.server = urlsplit(endpoint).netloc
        self.refused = 0
        self._to_refuse, self._refusal = 0, "busy"
        self._next: tuple[str, Callable[[str, str], bool], int] | None = None
        self._lock = threading.Lock()

    def address(self, store: str) -> str:
        """The address of a store of the server, through the proxy."""
        return f"{store}?endpoint=http://127.0.0.1:{self.server_port}"

    def refuse(self, count: int, refusal: str = "busy") -> None:
        """Refuses the next requests: "busy", so that they are sent again, or "denied"."""
        with self._lock:
            self._to_refuse, self._refusal = count, refusal

    def arm(
        self, fault: str, is_meant: Callable[[str, str], bool], refused_after: int = 0
    ) -> None:
        """The fault of the next request with a method and a path for which ``is_meant`` is true:
        "busy", "denied" or "lost" (performed, without a response). Denies as many requests after
        it."""
        with self._lock:
            self._next = fault, is_meant, refused_after

    def disarm(self) -> None:
        with self._lock:
            self._next = None

    def take_fault(self, method: str, path: str) -> str | None:
        """The fault of a request that has arrived."""
        with self._lock:
            if self._to_refuse > 0:
                self._to_refuse -= 1
                self.refused += 1
                return self._refusal
            if self._next is None or not self._next[1](method, path):
                return None
            fault, _, self._to_refuse = self._next
            self._next, self._refusal = None, "denied"
            return fault

    @contextlib.contextmanager
    def serving(self) -> Iterator[Faults]:
        """Serves on a thread as long as the block runs."""
        with self:
            thread = threading.Thread(target=self.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                self.shutdown()
                thread.join()


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faults

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        fault = self.server.take_fault(self.command, self.path)
        if fault in ("busy", "denied"):
            self._respond(*((503, [], _BUSY) if fault == "busy" else (403, [], _DENIED)))
            return
        # The signature covers the header Host, which is that of the proxy.
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != "expect"
        }
        connection = http.client.HTTPConnection(self.server.server, timeout=600)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        data = response.read()
        if fault == "lost":
            connection.close()
            self.close_connection = True
            return
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
    with Faults(server["AWS_ENDPOINT_URL_S3"]).serving() as proxy:
        yield proxy
