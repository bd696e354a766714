"""The programs during the saves of a writer: they report no damage that does not exist."""

import itertools
import threading

import cairn
import numpy as np
import pytest
import torch
from live_server import live_server
from tool_programs import into_store

ROUNDS = 25


class Writer(threading.Thread):
    """Saves, overwrites, prunes and compacts until it is stopped."""

    def __init__(self, path, grace):
        super().__init__()
        self.store = cairn.open(path, mode="a", grace=grace)
        self.stopping = threading.Event()
        self.error = None
        self.saves = 0
        self.save(1)

    def save(self, step, **options):
        state = {f"layers.{i}": torch.randn(500) for i in range(20)} | {"same": torch.ones(50_000)}
        self.store.save(step, state, **options)
        self.saves += 1

    def run(self):
        try:
            with self.store:
                step = 1
                while not self.stopping.is_set():
                    step += 1
                    tuning = cairn.SaveTuning(incremental=step % 3 > 0, deltas=2 * (step % 2))
                    self.save(step, tuning=tuning)
                    self.save(step, overwrite=True)
                    self.store.prune(keep_last=3)
                    if step % 5 == 0:
                        self.store.compact()
        except BaseException as error:
            self.error = error

    def rounds(self):
        """Counts from 0, for at least ROUNDS rounds and until the writer has saved as often."""
        for i in itertools.count():
            if i >= ROUNDS and self.saves > ROUNDS:
                return
            assert self.is_alive(), (self.error, self.saves)
            yield i


@pytest.fixture(params=[0, None], ids=["without-grace", "with-grace"])
def writer(request, tmp_path):
    thread = Writer(tmp_path / "store", request.param)
    thread.start()
    yield thread
    thread.stopping.set()
    thread.join()
    assert thread.error is None, thread.error
    assert thread.saves > ROUNDS


def test_verification_reports_no_damage(writer, dump, tmp_path):
    for i in writer.rounds():
        rate = ["--max-rate", "1G"] if i % 5 == 0 else []
        verdict = dump("verify", tmp_path / "store", *rate)
        assert verdict.status == 0, verdict.out + verdict.err


def test_other_verbs_answer_or_state_that_the_step_is_gone(writer, dump, tmp_path):
    store = tmp_path / "store"
    verbs = [["overview"], ["steps"], ["keys"], ["chunks"], ["segments"], ["space"],
             ["history", "layers.1"], ["show", "layers.1"]]
    for _ in writer.rounds():
        for verb, *names in verbs:
            finished = dump(verb, store, *names)
            if finished.status != 0:
                assert "while it was being read" in finished.err, (verb, finished.err)


def test_the_report_is_of_the_store_that_is_open_whatever_its_path_means(tmp_path):
    path = tmp_path / "store"
    into_store(path, {"w": np.zeros(1 << 20, np.uint8)})
    with live_server(path) as server:
        path.rename(tmp_path / "moved")
        into_store(path, {"w": np.ones(5, np.uint8)})
        report = server.ask("report")

    assert report["problem_count"] == 0, report["problems"]
