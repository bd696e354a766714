"""Steps whose records were changed by somebody who can compute checksums: every call and every
program ends with what the step contains or with an error of Cairn.

CAIRN_FORGED_STEPS (300) is their number, and CAIRN_TEST_SEED the seed of the changes.
"""

import collections
import os
import resource
import subprocess

import cairn
import numpy as np
import pytest
import torch

from tool_programs import BIN_DIR, into_store

COUNT = int(os.environ.get("CAIRN_FORGED_STEPS", "300"))
SEED = int(os.environ.get("CAIRN_TEST_SEED", "1"))
EXPECTED = (cairn.Corrupt, cairn.Invalid, cairn.NotFound, cairn.Unavailable)


def state():
    shared = torch.arange(600.0)
    return {
        "model": collections.OrderedDict(a=torch.ones(30, 40), b=torch.zeros(3, dtype=torch.int8)),
        "shared": [shared, shared[10:20], shared.reshape(20, 30).t()],
        "numpy": (np.arange(12).reshape(3, 4), np.float32(2.5)),
        "values": {1: "text", 2.5: 10**40, None: b"bytes", True: 1.5,  # noqa: F601
                   "nested": [[], {}, (1, 2j)]},
        "counter": collections.Counter("abracadabra"),
        "size": torch.Size([2, 3]),
    }


@pytest.fixture(scope="module")
def forged(tmp_path_factory):
    path = tmp_path_factory.mktemp("forged") / "store"
    into_store(path, state())
    subprocess.run([BIN_DIR / "cairn_forge_program", path, str(COUNT), str(SEED)], check=True)
    return path


@pytest.fixture(autouse=True)
def limited_memory():
    """Sizes in forged records must not make a program take more memory than there is."""
    if "ASAN_OPTIONS" in os.environ:  # sanitizers reserve terabytes
        yield
        return
    old = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 30), old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


CALLS = {
    "read": lambda store, step: store.read(step=step),
    "flat": lambda store, step: store.read(step=step, flat=True),
    "part": lambda store, step: store.read("shared", step=step),
    "value": lambda store, step: store.read("values", step=step),
    "mapped": lambda store, step: store.read(step=step, mmap=True),
    "slice": lambda store, step: store.read_slice("model.a", [(2, 4), (0, 40)], step=step),
    "load": lambda store, step: store.load(state(), step=step, strict=False),
    "keys": lambda store, step: [str(key) for key in store.keys(step=step)],
    "diff": lambda store, step: store.diff(1, step),
    "skip": lambda store, step: store.read(step=step, skip_damaged=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_return_or_raise_errors_of_cairn(forged, name):
    raised = collections.Counter()
    with cairn.open(forged) as store:
        for step in range(1000, 1000 + COUNT):
            try:
                CALLS[name](store, step)
            except EXPECTED as error:
                assert type(error) is not cairn.Error
                raised[type(error).__name__] += 1
            except BaseException as error:
                raise AssertionError(f"step {step} of seed {SEED}") from error
    print(name, dict(raised))
    assert COUNT < 100 or raised["Corrupt"] > 0 or name == "slice"


@pytest.mark.parametrize("verb", ["keys", "chunks", "show", "diff"])
def test_programs_end_with_an_answer_or_one_error(forged, dump, verb):
    for step in range(1000, 1000 + min(COUNT, 100)):
        words = {"show": ["model.a"], "diff": [f"{forged}@1"]}.get(verb, [])
        dump(verb, f"{forged}@{step}", *words)  # the status is 0, 1 or 2


def test_a_report_contains_what_is_not_forged(forged, dump):
    assert dump("report", forged, "--json", "--all-steps", status=0).json()["examined_steps"] >= 1


def test_verification_finds_forged_records(forged, dump):
    verdict = dump("verify", forged, "--json", status=1)
    found = {error.get("step") for error in verdict.json()["damage"]}
    assert 1 not in found and len(found) > COUNT / 4
