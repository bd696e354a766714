"""Every parameter of the Python API with extreme values: no call may end the process or hang.

    test_extreme_options.py [--all] [DIRECTORY]     prints the calls that failed wrongly, and counts

Each call is repeated with one argument replaced by each of the values below, in a forked child, so
that a signal is the result of a call and not the end of the run. A call may succeed, or raise one
of the exceptions that the documentation names; a call that raises must have changed no step or tag.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import cairn

INTEGERS = [
    -(2**64), -(2**63), -1, 0, 1, 2, 63, 64, 65, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**63 - 1,
    2**63, 2**64 - 1, 2**64,
]
NUMBERS = [math.nan, math.inf, -math.inf, -1.0, -0.0, 5e-324, 0.5, 1.5, 1e18, 1e308]
TEXTS = [
    "", ".", "..", "a..b", ".a", "a.", "\0", "a\0b", "\ud800", "a\nb", "*", "**", "[", "[]",
    "[b-a]",
    "?", "!", "!*", "/", "../x", "\u202e\U0001f600", "a" * 65, "a" * 70_000, "*a" * 200,
    "**." * 200,
    "0", "-1", "loss:0", "loss:99999999999999999999", "loss:1:max:max",
]  # fmt: skip
OTHERS = [
    None, True, b"x", [], [None], ["", ""], [0], [math.nan], {}, {"": ""}, {"a": math.nan},
    {"a": 1},
    {1: "a"}, (), object(), ..., np.float32("nan"), np.int64(-1), torch.tensor(3),
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


class Stores:
    """The stores of one child. Closed at the end: a forked child must not share them."""

    def __init__(self, directory: str, storage: str) -> None:
        self._addresses = (f"{directory}/{storage}-{os.getpid()}-{i}" for i in itertools.count())
        self._in_memory = storage == "memory"
        self.main = self.new()
        for step in (1, 2, 3):
            changed = state()
            changed["model"]["w"][step] = -1
            self.main.save(step, changed, metrics={"loss": 1.0 / step}, tags=["last"])

    def new(self, **options: Any) -> cairn.Store:
        return cairn.open(self.address(), mode="a", alone=True, **options)

    def address(self) -> str:
        path = next(self._addresses)
        return f"memory:{path}" if self._in_memory else path


def stop_soon(*_: Any) -> bool:
    return False


def calls(stores: Stores) -> Iterator[tuple[str, Call, dict[str, Any]]]:
    """A name, a function and its usual arguments, each of which is replaced in turn."""
    store = stores.main
    numbers = itertools.count(10)

    def with_step(function: Call) -> Call:
        """Saves to a new step, unless that is the argument."""
        return lambda step=None, **rest: function(next(numbers) if step is None else step, **rest)

    def opened(address: Any = None, **options: Any) -> None:
        if options.get("mode") == "r" and address is None:
            address = store.address
        cairn.open(stores.address() if address is None else address, **options).close()

    def saved_async(step: Any = None, timeout: Any = 60.0, **options: Any) -> None:
        number = next(numbers) if step is None else step
        handle = store.save_async(number, state(), **options)
        handle.result()
        handle.result(timeout)

    def written(step: Any = None, fqn: Any = "a.b", **options: Any) -> None:
        number = next(numbers) if step is None else step
        with store.writer(number, **options) as writer:
            writer.add(fqn, torch.arange(9))

    def scrubbed(**options: Any) -> None:
        store.scrub(**options).stop()

    def copied(**options: Any) -> None:
        with stores.new() as target:
            cairn.copy_steps(store, target, progress=stop_soon, **options)

    def streamed(**options: Any) -> None:
        list(store.stream(3, **options))

    def tagged(step: Any = 3, name: Any = "tag") -> None:
        store.tag(step, name)
        store.untag(name)

    def policy_set(**options: Any) -> None:
        try:
            store.set_policy(**options)
        finally:
            store.set_policy()

    def mirrored(address: Any = None, **options: Any) -> None:
        to = stores.address() if address is None else address
        mirror = cairn.Mirror(to, **options)
        with stores.new() as source:
            source.save(0, {"a": 1}, mirror=mirror)

    save = {
        "step": None, "overwrite": False, "keys": None, "prefix": "",
        "metrics": None, "tags": (), "note": "", "allow_pickle": False, "mirror": None,
        "tuning": None,
    }  # fmt: skip
    streaming = {name: save[name] for name in save if name not in ("keys", "prefix")}
    tuned = {field.name: field.default for field in dataclasses.fields(cairn.SaveTuning)}

    def save_tuned(step: Any, **options: Any) -> None:
        store.save(step, state(), tuning=cairn.SaveTuning(**options))

    yield "open", opened, {
        "address": None, "mode": "a", "timeout": 1800.0, "take_over": False, "grace": None,
        "credentials": None, "fallback": (), "alone": True, "progress": False,
        "process_group": None,
    }  # fmt: skip
    yield "open to read", opened, {"address": None, "mode": "r", "fallback": (), "timeout": 9.0}
    yield "save", with_step(lambda step, **rest: store.save(step, state(), **rest)), save
    yield "save a value", with_step(lambda step, value: store.save(step, value)), {"value": {}}
    yield ("save a key", with_step(lambda step, key: store.save(step, {key: 1, "b": 2})),
           {"key": "k"})
    yield "save tuned", with_step(save_tuned), {"step": None, **tuned}
    yield "save async", saved_async, {**save, "timeout": 60.0}
    yield "write", written, {**streaming, "fqn": "a.b"}
    yield "load", lambda **rest: store.load(state(), **rest), {
        "step": 3, "strict": True, "keys": None, "prefix": "", "device": None, "read_once": False,
        "allow_pickle": False, "skip_damaged": False, "rename": None, "cast": False,
        "ignore_frozen": False,
    }  # fmt: skip
    yield "load into", lambda into: store.load(into, 3), {"into": state()}
    yield "read", store.read, {
        "patterns": None, "step": 3, "device": None, "mmap": False, "flat": False, "verify": True,
        "allow_pickle": False, "skip_damaged": False, "rename": None, "dtype": None,
    }  # fmt: skip
    yield "map", lambda **rest: store.read(mmap=True, **rest), {"step": 3, "verify": "lazy"}
    yield "read a slice", store.read_slice, {"fqn": "model.w", "slices": [(0, 4)], "step": 3}
    yield "read rows", lambda begin, end: store.read_slice("model.w", [(begin, end)], 3), {
        "begin": 0, "end": 4,
    }  # fmt: skip
    yield "read slices", store.read_slices, {"boxes": {"model.w": [[(0, 4)]]}, "step": 3}
    yield "stream", streamed, {"patterns": None, "device": None, "read_ahead_bytes": 1 << 20}
    yield "keys", store.keys, {"step": 3, "pattern": None}
    yield "damaged keys", store.damaged_keys, {"step": 3, "pattern": None}
    yield "statistics", store.statistics, {"step": 3, "pattern": None}
    yield "diff", store.diff, {"a": 1, "b": 2, "pattern": None}
    yield "step info", store.step_info, {"step": 3}
    yield "wait", lambda **rest: store.wait(**rest), {"after": 2, "timeout": 0.0}
    yield "wait verified", store.wait_verified, {"timeout": 1.0}
    yield "wait mirrored", store.wait_mirrored, {"timeout": 1.0}
    yield "pull", lambda **rest: store.pull(store.read(step=2), **rest), {
        "since": 2, "step": 3, "strict": True, "keys": None, "prefix": "",
    }  # fmt: skip
    yield "scrub", scrubbed, {"max_rate": 1 << 20, "every": 86_400.0}
    yield "tag", tagged, {"step": 3, "name": "tag"}
    yield "untag", store.untag, {"name": "none"}
    yield "policy", policy_set, {"keep_last": 1000, "keep_every": 0, "keep_best": ()}
    yield "compression", store.set_compression, {"compress": False}
    yield "compact", lambda **rest: store.compact(progress=stop_soon, **rest), {
        "max_dead": 0.15, "fold": False, "compress": False, "max_rate": None, "dry_run": False,
    }  # fmt: skip
    yield "edit", lambda into=None, **rest: store.edit(
        into=next(numbers) if into is None else into, **rest
    ), {
        "step": 3, "into": None, "drop": None, "rename": None, "graft_from": None, "graft": None,
        "under": "", "overwrite": False,
    }  # fmt: skip
    yield "graft", lambda **rest: store.edit(3, into=next(numbers), graft_from=2, **rest), {
        "graft": "model.w", "under": "other",
    }  # fmt: skip
    yield "rename", lambda old, new: store.edit(3, into=next(numbers), rename={old: new}), {
        "old": "model", "new": "net",
    }  # fmt: skip
    yield "fork", lambda into=None, **rest: store.fork(
        into=next(numbers) if into is None else into, **rest
    ), {"step": 3, "into": None, "to": None, "overwrite": False}  # fmt: skip
    yield "merge", lambda into=None, **rest: store.merge(
        into=next(numbers) if into is None else into, **rest
    ), {"steps": [1, 2], "into": None, "weights": None, "overwrite": False}  # fmt: skip
    yield "weigh", lambda a, b: store.merge([1, 2], into=next(numbers), weights=[a, b]), {
        "a": 1.0, "b": 2.0,
    }  # fmt: skip
    yield "copy", copied, {"steps": None, "overwrite": False, "max_rate": None}
    yield "mirror", mirrored, {
        "address": None, "every": 1, "keep_last": 0, "keep_every": 0, "max_pending": 4,
        "max_rate": None, "threads": 4, "timeout": 600.0, "take_over": False, "credentials": None,
    }  # fmt: skip
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


def cases(stores: Stores, thorough: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, function, arguments in calls(stores):
        for position, parameter in enumerate(arguments):
            for place, value in enumerate(VALUES):
                # The short version has each value with every third parameter.
                if not thorough and (place + position) % 3 != 0:
                    continue
                if takes_too_long(name, parameter, value):
                    continue
                given = {**arguments, parameter: value}
                given = {key: one for key, one in given.items()
                         if one is not None or key == parameter}
                positional = [given.pop("step")] if name == "delete" else []
                label = f"{name}: {parameter}={value!r}"
                yield label[:150], lambda f=function, p=positional, g=given: f(*p, **g)


def run_child(directory: str, storage: str, thorough: bool, first: int, out: int) -> None:
    """Runs the cases from `first` on; reports each before and after."""
    os.chdir(directory)
    stores = Stores(directory, storage)
    store = stores.main
    for number, (label, call) in enumerate(cases(stores, thorough)):
        if number < first:
            continue
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


def run(directory: str, storage: str, thorough: bool) -> tuple[int, list[str]]:
    """Returns the number of calls, and those that failed the wrong way."""
    failures: list[str] = []
    first = 0
    while True:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            status = 1
            try:
                run_child(directory, storage, thorough, first, write_end)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(write_end)
        label, has_ended = "the first call", False
        with os.fdopen(read_end, errors="replace") as lines:
            for line in lines:
                if line.startswith("!"):
                    failures.append(f"{storage}: {label} {line[1:].strip()}")
                    print(failures[-1].encode("utf-8", "backslashreplace").decode(), flush=True)
                elif line == "end\n":
                    has_ended = True
                else:
                    number, label = line.rstrip("\n").split("\t", 1)
                    first = int(number) + 1
        _, status = os.waitpid(child, 0)
        if status != 0:
            end = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an exit or a hang"
            failures.append(f"{storage}: {label} ended the process: {end}")
        if has_ended or len(failures) > 200:
            return first, failures


def main() -> int:
    arguments = sys.argv[1:]
    thorough = "--all" in arguments
    with tempfile.TemporaryDirectory() as temporary:
        directory = next((one for one in arguments if not one.startswith("--")), temporary)
        total, failures = 0, []
        for storage in ("memory", "directory") if thorough else ("memory",):
            count, found = run(directory, storage, thorough)
            total += count
            failures += found
    for failure in failures:
        print(failure.encode("utf-8", "backslashreplace").decode())
    print(f"{total} calls, {len(failures)} failures")
    return 1 if failures else 0


def test_no_value_of_a_parameter_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 failures" in ended.stdout


if __name__ == "__main__":
    sys.exit(main())
