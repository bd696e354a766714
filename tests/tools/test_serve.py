"""`kv-dump serve`: what it answers, and to whom."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cairn
from cairn_testing import damage, segment_files, wait_until
from live_server import live_server
from tool_programs import into_store, run_program


@pytest.fixture
def server(report_server):
    return report_server


UP = "model.layers.6.mlp.up.weight"


def up_weight(run, step):
    with cairn.open(run) as store:
        return np.asarray(store.read(UP, step=step, flat=True)[UP])


def raw_answer(server, request):
    """Sends bytes, and returns what the server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1200) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # the server closes the connection early
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
    return answer


def test_the_document_is_that_of_the_report(server, report_run):
    live = server.ask("report")

    report = run_program("kv-dump", "report", report_run, "--json").json()
    assert live.pop("live")["version"] == server.ask("state")["version"]
    assert live.keys() == report.keys()
    assert {**live, "generated": ""} == {**report, "generated": ""}


def test_keys_are_found_by_parts_of_their_names(server, dump, report_run):
    found = server.ask("keys", query="MLP up 3")

    assert [key["fqn"] for key in found["keys"]] == ["model.layers.3.mlp.up.weight"]
    assert found["keys"][0]["dtype"] == "float32" and found["keys"][0]["shape"] == "[128, 32]"
    keys = dump("keys", report_run, "--json").json()["keys"]
    everything = server.ask("keys")
    assert everything["matches"] == everything["key_count"] == len(keys)
    assert [key["fqn"] for key in everything["keys"]] == [key["fqn"] for key in keys]
    assert server.ask("keys", query="exp_avg", step="290")["matches"] > 0
    assert server.ask("keys", query="exp_avg")["matches"] == 0
    assert server.ask("keys", query="no such key")["keys"] == []
    many = server.ask("keys", query="weight " * 100)  # equal words count once
    assert many["matches"] == server.ask("keys", query="weight")["matches"] > 0


def test_values_are_those_of_the_step(server, report_run):
    values = up_weight(report_run, 1830)
    finite = values[np.isfinite(values)].astype(np.float64)

    key = server.ask("key", key=UP, step=1830)

    statistics = key["statistics"]
    assert statistics["nan"] == 5 == np.isnan(values).sum()
    assert statistics["mean"] == pytest.approx(finite.mean(), rel=1e-12)
    assert statistics["std"] == pytest.approx(finite.std(), rel=1e-12)
    histogram = key["histogram"]
    counts, edges = np.histogram(finite, bins=64)
    assert histogram["low"] == finite.min() and sum(histogram["counts"]) == len(finite)
    assert histogram["width"] == pytest.approx(edges[1] - edges[0], rel=1e-9)
    # Values at an edge may be in either bin, because the edges are rounded.
    assert np.abs(np.cumsum(histogram["counts"]) - np.cumsum(counts)).max() <= 1
    shown = run_program("kv-dump", "show", f"{report_run}@1830", UP).out
    assert [line.split() for line in key["text"].splitlines()] == [
        line.split() for line in shown.splitlines()[-len(key["text"].splitlines()) :]]  # fmt: skip


def test_a_slice_has_its_own_distribution(server, report_run):
    values = up_weight(report_run, 2990)

    key = server.ask("key", key=UP, slice="3,4:")

    assert key["elements"] == 28 and key["statistics"]["min"] == np.nanmin(values[3, 4:])


def test_plain_values_are_text(server):
    value = server.ask("key", key="replay.size", step=2990)
    assert (value["kind"], value["type"], value["text"]) == ("value", "int", "1080")


def test_two_steps_can_be_compared(server, dump, report_run):
    rows = dump("diff", f"{report_run}@1820", "@1830", "--values", "--json").json()["changes"]

    diff = server.ask("diff", a=1820, b=1830)

    assert sorted(row["fqn"] for row in diff["changes"]) == [row["fqn"] for row in rows]
    sizes = [row["changed_bytes"] for row in diff["changes"]]
    assert sizes == sorted(sizes, reverse=True)
    only = server.ask("diff", a=1820, b=1830, query="layers.6 up")
    assert [row["fqn"] for row in only["changes"]] == [UP] and only["changed"] == 1
    assert diff["unchanged"] > 0 and only["unchanged"] is None
    expected = next(row for row in rows if row["fqn"] == UP)
    difference = server.ask("difference", a=1820, b=1830, key=UP)
    for name in ("elements", "differing_elements", "largest_absolute_difference",
                 "not_comparable_elements"):  # fmt: skip
        assert difference[name] == expected[name]
    assert server.ask("diff", a="pretrained", b="best")["b"] == "1500"
    # The first and the last step have different keys.
    far = server.ask("diff", a=0, b=2990)
    assert far["removed"] > 0 and far["added"] == 2


def test_the_history_of_a_key_has_the_last_change_first(server):
    history = server.ask("history", key="model.wte.weight")

    steps = [version["step"] for version in history["versions"]]
    assert steps[0] == "290" and steps[-1] == "0" and history["count"] == len(steps) == 30


@pytest.mark.parametrize(
    ("path", "parameters", "status", "text"),
    [
        ("key", {}, 400, "the parameter key is missing"),
        ("key", {"key": "no.such"}, 404, "no such tensor"),
        ("key", {"key": UP, "step": 5}, 404, "no such step"),
        ("key", {"key": UP, "step": "-1"}, 404, "-1"),
        ("key", {"key": UP, "step": "99999999999999999999999"}, 404, "999"),
        ("diff", {"a": "x", "b": 10}, 404, "x"),
        ("history", {"key": ""}, 404, ""),
        ("key", {"key": UP, "slice": "9:9:9"}, 400, "only a step of 1"),
        ("difference", {"a": 1820, "b": 1830, "key": "replay.buffer"}, 400, "shape differ"),
        ("keys", {"query": " ".join(map(str, range(33)))}, 400, "more than 32 words"),
        ("keys", {"query": "a" * 1025}, 400, "more than 1 KiB"),
        ("diff", {"a": 0, "b": 10, "query": "a" * 1025}, 400, "more than 1 KiB"),
        ("nothing", {}, 404, "no such page"),
    ],
)
def test_errors_are_documents(server, path, parameters, status, text):
    answered, error = server.refuse(path, **parameters)
    assert answered == status and text in error["message"] + error.get("key", "")


def listens_on(address, port):
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


def test_only_this_machine_is_answered(server):
    assert listens_on("127.0.0.1", server.port) and not listens_on("127.0.0.2", server.port)
    for host, status in [("localhost:1", 200), ("LocalHost", 200), ("127.0.0.1", 200),
                         ("[::1]:9", 200), ("evil.example", 403), ("127.evil.example:80", 403),
                         ("127.1", 403), ("192.0.2.7", 403), ("localhost.evil.example", 403),
                         ("", 403)]:  # fmt: skip
        assert server.get("api/state", headers={"Host": host})[0] == status, host


def test_pages_of_other_sites_get_nothing(server):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document"}  # fmt: skip
    assert server.get("", headers=link)[0] == 200
    assert server.get("api/key", headers=link, key=UP)[0] == 403
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    assert server.get("", headers=frame)[0] == 403
    for site, mode, status in [("same-origin", "cors", 200), ("none", "navigate", 200),
                               ("cross-site", "no-cors", 403),
                               ("same-site", "cors", 403)]:  # fmt: skip
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
        assert server.get("api/state", headers=headers)[0] == status, (site, mode)
    refused = json.loads(server.get("api/state", headers=frame)[2])
    assert "other sites" in refused["error"]["message"]


def test_other_hosts_can_be_allowed(report_run):
    with live_server(report_run, "--allow-host", "proxy.example") as server:
        assert server.get("api/state", headers={"Host": "proxy.example:8443"})[0] == 200
        assert server.get("api/state", headers={"Host": "evil.example"})[0] == 403
    with live_server(report_run, "--allow-host", "*") as server:
        assert server.get("api/state", headers={"Host": "evil.example"})[0] == 200
    with live_server(report_run, "--address", "0.0.0.0", "--allow-host", "Trainer-7") as server:
        assert listens_on("127.0.0.2", server.port)
        assert server.get("api/state", headers={"Host": "192.0.2.7:80"})[0] == 200
        assert server.get("api/state", headers={"Host": "trainer-7"})[0] == 200
        assert server.get("api/state", headers={"Host": "evil.example"})[0] == 403
        server.end()
        assert "everybody who can reach 0.0.0.0 can read the store" in server.process.stderr.read()


def test_nothing_is_changed(server):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        status, headers, _ = server.get("api/state", method=method)
        assert status == 405 and headers["Allow"] == "GET, HEAD", method
    status, headers, body = server.get("api/state", method="HEAD")
    assert status == 200 and body == b"" and int(headers["Content-Length"]) > 0


def test_the_files_of_the_store_are_as_before(tmp_path):
    store = into_store(tmp_path / "store", {"a": np.ones(4)})

    def files():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}

    before = files()
    with live_server(store) as server:
        server.get()
        server.ask("key", key="a")
        server.ask("diff", a=1, b=1)
    assert files() == before


def test_no_file_is_served(server):
    for path in ("/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd",
                 "/etc/passwd", "/CAIRN", "/api/", "/api/state/"):  # fmt: skip
        answer = raw_answer(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 4"), (path, answer)
        assert b"root:" not in answer


def test_garbage_does_not_end_the_server(server):
    generator = np.random.default_rng(3)
    for request in [
        b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /api/key?key=%ZZ%00%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/keys?query=" + b"%00" * 1000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"x" * 400_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /api/state HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",
        *(generator.bytes(3000) for _ in range(20)),
    ]:
        raw_answer(server, request)
    # Clients that leave before they have read the answer.
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert server.ask("state")["steps"] == 300


def open_sockets(pid):
    """Returns the number of sockets of a process."""
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(entry.path).startswith("socket:[")
    return found


class Flood:
    """Keeps so many connections open that each have sent only `request`, and opens those again that
    the server closes."""

    def __init__(self, port, count, request):
        self._address = ("127.0.0.1", port)
        self._request = request
        self._connections = [self._open() for _ in range(count)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._stop.set()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def _open(self):
        connection = socket.socket()
        connection.setblocking(False)  # noqa: FBT003
        connection.connect_ex(self._address)
        return connection

    def _run(self):
        sent = set()
        while not self._stop.is_set():
            for i, connection in enumerate(self._connections):
                try:
                    # The request, and then one byte of a header after another.
                    connection.send(b"x" if connection in sent else self._request)
                    sent.add(connection)
                except BlockingIOError:
                    pass
                except OSError:
                    sent.discard(connection)
                    connection.close()
                    self._connections[i] = self._open()
            self._stop.wait(0.01)


def state_for_other_address(server):
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.port, timeout=1200, source_address=("127.0.0.2", 0)
    )
    with contextlib.closing(connection):
        connection.request("GET", "/api/state")
        return json.load(connection.getresponse())


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /api/state HTTP/1.1\r\na: ", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    ids=["incomplete_requests", "answers_that_are_not_read"],
)
def test_hundreds_of_slow_connections_do_not_block_others(report_run, request_bytes):
    with live_server(report_run) as server, Flood(server.port, 600, request_bytes):
        for _ in range(5):
            assert state_for_other_address(server)["steps"] == 300
        assert open_sockets(server.process.pid) <= 256 + 16


def is_waiting(connection):
    """Returns whether the server has neither answered nor closed it."""
    try:
        return connection.recv(1, socket.MSG_PEEK) is None
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_requests_that_take_long_do_not_block_other_addresses(memory_folder):
    path = into_store(memory_folder / "busy", {"a": np.zeros(1 << 26, np.float32)})
    with live_server(path) as server, contextlib.ExitStack() as opened:
        connections = []
        for _ in range(400):  # more than the server takes
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=1200)
            connections.append(opened.enter_context(connection))
            connection.sendall(b"GET /api/key?key=a&all=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.setblocking(False)  # noqa: FBT003
        assert state_for_other_address(server)["steps"] == 1
        assert sum(map(is_waiting, connections)) > 100


def test_requests_are_answered_at_the_same_time(server):
    def read(step):
        for _ in range(5):
            assert server.ask("key", key=UP, step=step)["step"] == str(step)
            server.ask("keys", query=f"layers.{step % 8}", step=step)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(300, 380, 10)))


def test_the_report_follows_the_store(tmp_path):
    path = tmp_path / "store"
    with cairn.open(path, mode="a") as store, live_server(path) as server:
        assert server.ask("report")["steps"] == 0
        assert "latest" not in server.ask("state")
        empty = server.ask("state")["version"]
        for step in (5, 10, 15):
            tuning = cairn.SaveTuning(statistics=True)
            store.save(step, {"a": np.full(1000, step, np.float32)}, tuning=tuning)
        state = server.ask("state")
        assert state["version"] != empty and state["latest"]["step"] == "15"
        assert server.ask("state")["version"] == state["version"]
        assert server.ask("keys", step=5)["key_count"] == 1
        store.delete(5)
        assert server.ask("steps")["steps"] == ["10", "15"]
        assert server.refuse("key", key="a", step=5)[0] == 404
        # A report is collected again at most for a tenth of the time.
        version = server.ask("state")["version"]
        wait_until(lambda: server.ask("report")["live"]["version"] == version)
        assert server.ask("report")["timeline"]["last"] == [10, 15]


def test_a_relative_address_is_followed_and_one_of_a_home_refused(tmp_path, monkeypatch):
    for folder, step in (("home", 5), ("elsewhere", 7)):
        (tmp_path / folder).mkdir()
        into_store(tmp_path / folder / "store", {"a": np.ones(4)}, first=step)
    monkeypatch.chdir(tmp_path / "home")
    with live_server("store") as server:
        monkeypatch.chdir(tmp_path / "elsewhere")
        into_store(tmp_path / "home/store", {"a": np.ones(4)}, first=6)
        assert server.ask("steps")["steps"] == ["5", "6"]
    refused = run_program("kv-dump", "serve", "~/store", status=2)
    assert "only a shell replaces '~'" in refused.err


def test_damage_is_an_error_of_one_key(tmp_path):
    bad = np.full(5000, 2.5)
    store = into_store(tmp_path / "store", {"a": np.ones(1000), "b": bad})
    (segment,) = segment_files(store)
    damage(store, bad.tobytes())

    with live_server(store) as server:
        assert server.ask("key", key="a")["statistics"]["max"] == 1
        status, error = server.refuse("key", key="b")
        assert status == 500 and error["code"] == "DataLoss"
        assert error["file"].endswith(segment.name)


def test_large_tensors_are_sampled_unless_all_is_asked_for(memory_folder):
    values = np.arange(20 << 20, dtype=np.int32)  # 80 MiB
    with live_server(into_store(memory_folder / "sampled", {"a": values})) as server:
        sample = server.ask("key", key="a")
        assert sample["elements"] == len(values)
        assert sample["read_elements"] == 16 << 20  # 64 MiB
        counts = np.array(sample["histogram"]["counts"])
        assert counts.sum() == 16 << 20 and counts.min() > 0  # from every part of the tensor
        everything = server.ask("key", key="a", all=1)
        assert everything["read_elements"] == len(values)
        assert everything["statistics"]["max"] == len(values) - 1
        assert everything["histogram"]["width"] == len(values) // 64


def test_a_port_that_is_in_use_is_an_error_if_it_was_chosen(server, report_run):
    finished = run_program("kv-dump", "serve", report_run, "--port", server.port, status=2)
    assert f"cannot listen on 127.0.0.1:{server.port}: the port is in use" in finished.err
    words = "serve", report_run, "--address", "203.0.113.7"
    assert "cannot listen on 203.0.113.7" in run_program("kv-dump", *words, status=2).err
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # it may be in use already
            busy.bind(("127.0.0.1", 7707))
            busy.listen()
        with live_server(report_run, port=None) as other:
            assert other.port != 7707 and other.ask("state")["steps"] == 300


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(report_run, end):
    with live_server(report_run) as server:
        server.ask("state")
        assert server.end(end) == 0


def test_a_signal_ends_what_is_being_read(memory_folder):
    state = {"a": np.zeros((1 << 26, 1), np.float32)}  # 256 MiB
    path = into_store(memory_folder / "long", state)
    with live_server(path) as server, socket.create_connection(
        ("127.0.0.1", server.port)
    ) as connection:
        connection.sendall(b"GET /api/key?key=a&all=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.ask("state")  # the answer to the first request has begun, or will not
        assert server.end() == 0
        # No answer, an error, or all of the answer if the machine is fast.
        answer = connection.recv(100)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 503", b"HTTP/1.1 200")), answer


def test_long_names_do_not_make_the_page_large(memory_folder):
    state = {"<" * 60_000 + str(i): np.ones(2, np.float32) for i in range(20)}
    with live_server(into_store(memory_folder / "long_names", state)) as server:
        assert len(server.get()[2]) < 1 << 20
        assert all(tensor["key"] is None for tensor in server.ask("report")["tensors"])
        assert server.ask("keys", query="7")["matches"] == 2


def test_steps_above_two_to_the_53rd_are_exact(tmp_path):
    store = into_store(tmp_path / "store", {"a": np.ones(3)}, {"a": np.zeros(3)}, first=2**60 + 1)
    with live_server(store) as server:
        assert server.ask("steps")["steps"] == [str(2**60 + 1), str(2**60 + 2)]
        assert server.ask("state")["latest"]["step"] == str(2**60 + 2)
        assert server.ask("diff", a=2**60 + 1, b=2**60 + 2)["a"] == str(2**60 + 1)


def test_long_values_are_cut_between_characters(tmp_path):
    state = {name: name + "中" * 400_000 for name in ("a", "bb", "ccc")}
    with live_server(into_store(tmp_path / "store", state)) as server:
        for name in state:
            value = server.ask("key", key=name)
            assert value["truncated"] and value["text"].rstrip("中") == name


def test_names_are_escaped_for_people_and_exact_for_requests(tmp_path):
    name = "a\u202eb\n<img src=x onerror=alert(1)>"
    state = {name: np.ones(3), "plain": os.path.sep}
    with live_server(into_store(tmp_path / "store", state)) as server:
        key = server.ask("keys", query="img")["keys"][0]
        assert key["key"] == name and key["fqn"] == r"a\u{202e}b\n<img src=x onerror=alert(1)>"
        assert server.ask("key", key=key["key"])["statistics"]["max"] == 1
        _, headers, body = server.get()
        assert b"<img" not in body and headers["X-Content-Type-Options"] == "nosniff"
        document = json.loads(server.get("api/report")[2])
        assert document["tensors"][0]["key"] == name
