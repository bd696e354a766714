"""`kv-dump serve` as a context manager, and requests to it."""

import contextlib
import json
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from tool_programs import BIN_DIR


class LiveServer:
    """A running server. `url` ends with a slash."""

    def __init__(self, process, url):
        self.process = process
        self.url = url
        self.port = urllib.parse.urlsplit(url).port

    def get(self, path="", headers=None, method="GET", **parameters):
        """Returns (status, headers, body)."""
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        request = urllib.request.Request(self.url + path + query, headers=headers or {},
                                         method=method)  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=1200) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def ask(self, path, **parameters):
        """Returns the document of a request that succeeds."""
        status, headers, body = self.get("api/" + path, **parameters)
        assert status == 200, body
        assert headers["Content-Type"] == "application/json; charset=utf-8"
        return json.loads(body)

    def refuse(self, path, **parameters):
        """Returns the status and the error of a request that fails."""
        status, _, body = self.get("api/" + path, **parameters)
        assert status >= 400, body
        return status, json.loads(body)["error"]

    def end(self, with_signal=signal.SIGINT):
        """Ends the server, and returns its exit status."""
        self.process.send_signal(with_signal)
        return self.process.wait(timeout=1200)


@contextlib.contextmanager
def live_server(store, *words, port=0):
    """Serves a store until the block ends."""
    chosen = [] if port is None else ["--port", str(port)]
    process = subprocess.Popen(
        [BIN_DIR / "kv-dump", "serve", store, "--json", *chosen, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield LiveServer(process, json.loads(line)["url"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
