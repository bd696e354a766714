"""A call imports what it needs before it changes anything. In a process that has no more file
descriptors an import fails, and a step that is durable would be reported as one that is not."""

from __future__ import annotations

import re
import shutil

import numpy as np
from cairn_testing import run_python

import cairn

# Argument: a folder with a store per call. A child of this process, which has imported nothing but
# the package, makes each call. Once it has changed something, no import finds a module.
PROGRAM = """
import errno, os, sys
import numpy as np
import cairn
from cairn import Mirror

state = {"a": np.zeros(1000, np.uint8), "pair": (0, np.ones(2))}

def save_to_mirror(store):
    store.save(2, state, mirror=mirror)
    store.wait_mirrored()

def save_with_observer(store):
    events = []
    store.observe(events.append)
    store.save(2, state, tuning=cairn.SaveTuning(statistics=True))
    assert events[0].info.step == 2 and events[0].health.nan == 0

def write(store):
    with store.writer(2, mirror=mirror) as writer:
        writer.add("a", state["a"])
    assert writer.report.step == 2

def save_with_dcp(store):
    store.close()
    import torch
    import torch.distributed.checkpoint as dcp
    from cairn.dcp import CairnWriter
    writer = CairnWriter(path, step=2, mirror=mirror)
    dcp.save({"a": torch.zeros(5)}, storage_writer=writer)
    writer.wait_mirrored()

calls = dict(
    save=lambda store: store.save(2, state),
    save_async=lambda store: store.save_async(2, state).result(),
    save_to_mirror=save_to_mirror,
    save_async_to_mirror=lambda store: store.save_async(2, state, mirror=mirror).mirrored(),
    save_with_observer=save_with_observer,
    save_with_progress=lambda store: store.save(2, state, progress=lambda done, total: None),
    write=write,
    save_with_dcp=save_with_dcp,
    delete=lambda store: store.delete(0),
    merge=lambda store: store.merge([0, 1], into=2),
    load=lambda store: store.load(state),
    pull=lambda store: store.pull(state, since=0, step=1),
)

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if has_changed() and not name.startswith("torch"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

def commits():
    return os.listdir(os.path.join(path, "roots"))

for call in calls:
    if os.fork() > 0:
        print(call, os.wait()[1], flush=True)
        continue
    path = os.path.join(sys.argv[1], call)
    mirror = Mirror(path + ".mirror")
    with cairn.open(path, mode="a", grace=0, progress=call == "save_with_progress") as store:
        before = commits()
        is_load = call in ("load", "pull")
        has_changed = lambda: state["a"][0] != 0 if is_load else commits() != before
        sys.meta_path.insert(0, Refusing())
        calls[call](store)
        assert has_changed()
    sys.exit()
"""

CALLS = re.findall(r"^    (\w+)=", PROGRAM, re.MULTILINE)


def test_no_call_imports_anything_after_it_has_changed_something(tmp_path):
    with cairn.open(tmp_path / CALLS[0], mode="a") as store:
        for step in (0, 1):
            store.save(step, {"a": np.full(1000, step, np.uint8), "pair": (step, np.ones(2))})
    for call in CALLS[1:]:
        shutil.copytree(tmp_path / CALLS[0], tmp_path / call)

    result = run_python(PROGRAM, tmp_path, fresh=True)

    assert result.stdout.splitlines() == [f"{call} 0" for call in CALLS], result.stderr
