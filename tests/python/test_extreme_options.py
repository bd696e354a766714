"""Every parameter of the Python API with extreme values: no call may end the process or hang.

Each call is repeated with one argument replaced by every third of the values below, in a forked
child, so that a signal is the result of a call and not the end of the run. A call may succeed, or
raise one of the exceptions that the documentation names; a call that raises must have changed no
step or tag.
"""

from __future__ import annotations

import faulthandler
import inspect
import itertools
import math
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from ranks import in_new_process

import cairn

INTEGERS = [
    -(2**64), -(2**63), -1, 0, 1, 2, 63, 64, 65, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**63 - 1, 2**63, 2**64 - 1, 2**64,
]  # fmt: skip
NUMBERS = [math.nan, math.inf, -math.inf, -1.0, -0.0, 5e-324, 0.5, 1.5, 1e18, 1e308]
TEXTS = [
    "", ".", "..", "a..b", ".a", "a.", "\0", "a\0b", "\ud800", "a\nb", "*", "**", "[", "[]",
    "[b-a]", "?", "!", "!*", "/", "../x", "\u202e\U0001f600", "a" * 65, "a" * 70_000, "*a" * 200,
    "**." * 200, "0", "-1", "loss:0", "loss:99999999999999999999", "loss:1:max:max",
]  # fmt: skip
OTHERS = [
    None, True, b"x", [], [None], ["", ""], [0], [math.nan], {}, {"": ""}, {"a": math.nan},
    {"a": 1}, {1: "a"}, (), object(), ..., np.float32("nan"), np.int64(-1), torch.tensor(3),
]  # fmt: skip
VALUES: list[Any] = [*INTEGERS, *NUMBERS, *TEXTS, *OTHERS]
# What the package documents, what Python raises for arguments of other types, and timeouts.
ALLOWED = (cairn.Error, TypeError, ValueError, OverflowError, TimeoutError, MemoryError)

Call = Callable[..., Any]


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.arange(300.0), "b": torch.zeros(0), "h": torch.ones(7, 3).half()},
        "array": np.arange(5),
        "epoch": 3,
    }


ADDRESSES = (f"memory:{i}" for i in itertools.count())
"""Addresses of new stores, in the memory of one child."""


def new_store() -> cairn.Store:
    return cairn.open(next(ADDRESSES), mode="a", alone=True)


def store_of_three_steps() -> cairn.Store:
    store = new_store()
    for step in (1, 2, 3):
        changed = state()
        changed["model"]["w"][step] = -1
        store.save(step, changed, metrics={"loss": 1.0 / step}, tags=["last"])
    return store


def stop_soon(*_: Any) -> bool:
    return False


def usual(function: Call, **given: Any) -> dict[str, Any]:
    """The parameters of a function that have a default, with these values where they are given."""
    parameters = inspect.signature(function).parameters.values()
    found = {one.name: one.default for one in parameters if one.default is not one.empty}
    return {name: value for name, value in {**found, **given}.items() if name != "progress"}


def calls(store: cairn.Store) -> Iterator[tuple[str, Call, dict[str, Any]]]:
    """A name, a function and its usual arguments, each of which is replaced in turn."""
    numbers = itertools.count(10)

    def new(step: Any) -> Any:
        """A new step, unless that is the argument."""
        return next(numbers) if step is None else step

    def opened(address: Any = None, **options: Any) -> None:
        if options.get("mode") == "r" and address is None:
            address = store.address
        cairn.open(next(ADDRESSES) if address is None else address, **options).close()

    def saved(step: Any = None, state: Any = state(), **options: Any) -> None:
        store.save(new(step), state, **options)

    def saved_async(step: Any = None, timeout: Any = 60.0, **options: Any) -> None:
        handle = store.save_async(new(step), state(), **options)
        handle.result()
        handle.result(timeout)

    def written(step: Any = None, fqn: Any = "a.b", **options: Any) -> None:
        with store.writer(new(step), **options) as writer:
            writer.add(fqn, torch.arange(9))

    def copied(**options: Any) -> None:
        with new_store() as target:
            cairn.copy_steps(store, target, progress=stop_soon, **options)

    def tagged(step: Any = 3, name: Any = "tag") -> None:
        store.tag(step, name)
        store.untag(name)

    def policy_set(**options: Any) -> None:
        try:
            store.set_policy(**options)
        finally:
            store.set_policy()

    def mirrored(address: Any = None, **options: Any) -> None:
        mirror = cairn.Mirror(next(ADDRESSES) if address is None else address, **options)
        with new_store() as source:
            source.save(0, {"a": 1}, mirror=mirror)

    def made(call: Call, **fixed: Any) -> Call:
        """A call that makes the step `into`."""
        return lambda into=None, **rest: call(into=new(into), **fixed, **rest)

    tuning = usual(cairn.SaveTuning)
    saving = usual(store.save, step=None)
    yield "open", opened, usual(cairn.open, address=None, mode="a", alone=True)
    yield "open to read", opened, {"address": None, "mode": "r", "fallback": (), "timeout": 9.0}
    yield "save", saved, saving
    yield "save a value", lambda value: saved(state=value), {"value": {}}
    yield "save a key", lambda key: saved(state={key: 1, "b": 2}), {"key": "k"}
    yield "save tuned", lambda step=None, **rest: saved(step, tuning=cairn.SaveTuning(**rest)), {
        "step": None, **tuning
    }  # fmt: skip
    yield "save async", saved_async, {**saving, "timeout": 60.0}
    yield "write", written, usual(store.writer, step=None, fqn="a.b")
    yield "load", lambda **rest: store.load(state(), **rest), usual(store.load, step=3)
    yield "load into", lambda into: store.load(into, 3), {"into": state()}
    yield "map", lambda **rest: store.read(mmap=True, **rest), {"step": 3, "verify": "lazy"}
    yield "read a slice", store.read_slice, {"fqn": "model.w", "ranges": [(0, 4)], "step": 3}
    yield "read rows", lambda begin, end: store.read_slice("model.w", [(begin, end)], 3), {
        "begin": 0, "end": 4,
    }  # fmt: skip
    yield "read slices", store.read_slices, {"boxes": {"model.w": [[(0, 4)]]}, "step": 3}
    yield "stream", lambda **rest: list(store.stream(3, **rest)), {
        "patterns": None, "device": None, "read_ahead_bytes": 1 << 20,
    }  # fmt: skip
    for call in (store.read, store.keys, store.damaged_keys, store.statistics):
        yield call.__name__, call, usual(call, step=3)
    yield "diff", store.diff, usual(store.diff, a=1, b=2)
    yield "step info", store.step_info, {"step": 3}
    yield "wait", store.wait, {"after": 2, "timeout": 0.0}
    yield "wait verified", store.wait_verified, {"timeout": 1.0}
    yield "wait mirrored", store.wait_mirrored, {"timeout": 1.0}
    yield "pull", lambda **rest: store.pull(store.read(step=2), **rest), usual(
        store.pull, since=2, step=3
    )
    yield "scrub", lambda **rest: store.scrub(**rest).stop(), {"max_rate": 1 << 20, "every": 9e4}
    yield "tag", tagged, usual(tagged)
    yield "untag", store.untag, {"name": "none"}
    yield "policy", policy_set, usual(store.set_policy, keep_last=1000)
    yield "compression", store.set_compression, {"compress": False}
    yield "compact", lambda **rest: store.compact(progress=stop_soon, **rest), usual(store.compact)
    yield "edit", made(store.edit), usual(store.edit, step=3, into=None)
    yield "graft", made(store.edit, step=3, graft_from=2), {"graft": "model.w", "under": "other"}
    yield "rename", lambda old, new: made(store.edit, step=3, rename={old: new})(), {
        "old": "model", "new": "net",
    }  # fmt: skip
    yield "fork", made(store.fork), usual(store.fork, step=3)
    yield "merge", made(store.merge), usual(store.merge, steps=[1, 2], into=None)
    yield "weigh", lambda a, b: made(store.merge, steps=[1, 2], weights=[a, b])(), {
        "a": 1.0, "b": 2.0,
    }  # fmt: skip
    yield "copy", copied, usual(cairn.copy_steps)
    yield "mirror", mirrored, usual(cairn.Mirror, address=None)
    yield "delete", store.delete, {"step": 2**63}
    yield "prune", lambda **rest: store.prune(**{"keep_last": 10_000, **rest}), {
        "keep_every": 0, "keep_best": (),
    }  # fmt: skip
    yield "prune to the last", store.prune, {"keep_last": 10_000}


def takes_too_long(name: str, parameter: str, value: Any) -> bool:
    """Calls that do as they are asked, for longer than anybody waits."""
    if name == "mirror":
        # Copies at this rate, or repeats a copy that fails.
        return parameter in ("max_rate", "address", "timeout", "credentials", "threads")
    if parameter == "mirror" and value:
        return True
    if parameter in ("address", "fallback", "to") and isinstance(value, str):
        return not value or value in (".", "..", "/")  # of the test itself
    return False


def cases(store: cairn.Store) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, function, arguments in calls(store):
        for position, parameter in enumerate(arguments):
            for value in VALUES[-position % 3 :: 3]:
                if takes_too_long(name, parameter, value):
                    continue
                given = {**arguments, parameter: value}
                given = {key: one for key, one in given.items()
                         if one is not None or key == parameter}
                positional = [given.pop("step")] if name == "delete" else []
                label = f"{name}: {parameter}={value!r}"
                yield label[:150], lambda f=function, p=positional, g=given: f(*p, **g)


def run_child(first: int, out: int) -> None:
    """Runs the cases from `first` on; reports each before and after."""
    store = store_of_three_steps()
    for number, (label, call) in itertools.islice(enumerate(cases(store)), first, None):
        os.write(out, f"{number}\t{label.encode('utf-8', 'backslashreplace').decode()}\n".encode())
        faulthandler.dump_traceback_later(60, exit=True)
        before = store.steps(), store.tags()
        problem = ""
        try:
            call()
        except ALLOWED as error:
            if (store.steps(), store.tags()) != before and "timeout=" not in label:
                problem = f"has changed steps or tags, and raised {error!r}"
        except RuntimeError as error:  # of torch
            problem = "" if "device=" in label else f"raised {error!r}"
        except Exception as error:  # noqa: BLE001
            problem = f"raised {error!r}"
        if problem:
            os.write(out, f"!{problem}\n".encode("utf-8", "backslashreplace"))
        extra = [step for step in store.steps() if step > 3]
        if extra:
            store.delete(*extra)
    faulthandler.cancel_dump_traceback_later()
    assert store.read("model.w", step=3)["model"]["w"][3] == -1
    store.close()
    os.write(out, b"end\n")


@in_new_process
def test_no_value_of_a_parameter_ends_the_process(rank, tmp_path) -> None:
    os.chdir(tmp_path)  # for relative paths
    faulthandler.cancel_dump_traceback_later()  # its thread does not exist in a child
    failures: list[str] = []
    first, has_ended = 0, False
    while not has_ended and len(failures) < 200:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                run_child(first, write_end)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(write_end)
        label = "the first call"
        with os.fdopen(read_end, errors="replace") as lines:
            for line in lines:
                if line.startswith("!"):
                    failures.append(f"{label} {line[1:].strip()}")
                elif line == "end\n":
                    has_ended = True
                else:
                    number, label = line.rstrip("\n").split("\t", 1)
                    first = int(number) + 1
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            failures.append(f"{label} ended the process with status {status}")
    assert not failures, "\n".join(failures)
