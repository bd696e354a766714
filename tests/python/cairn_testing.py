"""Helpers of the Python tests: exact comparison of states, and child processes."""

from __future__ import annotations

import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interpreters import Program

import cairn


def payload(tensor: torch.Tensor) -> bytes:
    """The row-major bytes of a tensor."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.numel() == 0:
        return b""
    return flat.view(torch.uint8).numpy().tobytes()


def random_tensor(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """A tensor of random bit patterns (bools: zeros and ones)."""
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    if count == 0:  # torch's own view of nothing as another dtype fails
        return torch.empty(shape, dtype=dtype)
    high = 2 if dtype == torch.bool else 256
    raw = np.random.default_rng(seed).integers(0, high, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


def assert_same(got: Any, want: Any, where: str = "state") -> None:
    """Asserts that two states are equal bit for bit, including types, order and key types."""
    is_dtensor = hasattr(want, "_local_tensor")
    is_plain = isinstance(want, torch.Tensor) and not is_dtensor
    want_type = torch.Tensor if is_plain else type(want)
    assert type(got) is want_type, f"{where}: {type(got)} is not {want_type}"
    if isinstance(want, (dict, OrderedDict)):
        _assert_same_dict(got, want, where)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), where
        for i, (got_item, want_item) in enumerate(zip(got, want)):
            assert_same(got_item, want_item, f"{where}[{i}]")
    elif is_dtensor:
        for name in ("shape", "dtype", "placements", "device_mesh"):
            assert getattr(got, name) == getattr(want, name), f"{where}: {name}"
        assert got.stride() == want.stride(), where
        assert_same(got._local_tensor, want._local_tensor, where)
    elif isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device), where
        assert payload(got) == payload(want), where
    elif isinstance(want, (np.ndarray, np.generic)):
        native = want.dtype.newbyteorder("=")
        assert (got.dtype, got.shape) == (native, want.shape), where
        assert got.tobytes() == want.astype(native).tobytes(), where
    elif isinstance(want, float):
        assert struct.pack("d", got) == struct.pack("d", want), where
    elif isinstance(want, complex):
        parts = (got.real, got.imag), (want.real, want.imag)
        assert struct.pack("dd", *parts[0]) == struct.pack("dd", *parts[1]), where
    else:
        assert got == want, where


def _assert_same_dict(got: dict, want: dict, where: str) -> None:
    # repr distinguishes 1, True and 1.0, and -0.0 and 0.0, which are equal as keys.
    assert [repr(key) for key in got] == [repr(key) for key in want], where
    for key in want:
        assert_same(got[key], want[key], f"{where}[{key!r}]")


def run_python(
    source: str, *args: object, check: bool = True, fresh: bool = False, finalizes: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a new process. `args` are its sys.argv[1:]. With `fresh` the process
    has imported nothing; otherwise it is forked from one that has imported torch and cairn, and
    `finalizes` is that of `Program`."""
    arguments = ["-c", textwrap.dedent(source), *map(str, args)]
    if fresh:
        command = [sys.executable, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    else:
        program = Program(arguments, finalizes=finalizes)
        output, errors = program.communicate()
        result = subprocess.CompletedProcess(arguments, program.returncode, output, errors)
    assert not check or result.returncode == 0, result.stderr
    return result


def run_on_terminal(
    words: Sequence[object], *, stream: str = "stderr", columns: int = 80, **options: Any
) -> tuple[str, int]:
    """Runs a program with a terminal as its standard error or output. Returns what it has written
    there, and its exit status."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: terminal}
    program = subprocess.Popen(list(map(str, words)), **streams, **options)
    os.close(terminal)
    written = b""
    try:
        while part := os.read(controller, 65536):
            written += part
    except OSError:  # EIO: the program has ended
        pass
    finally:
        os.close(controller)
    return written.decode(), program.wait(1200)


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for what another thread or process does without an event that could be waited for.
    It looks for a number of times, and not until a time, so that a busy machine has longer."""
    for _ in range(120_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never happened")


def interrupt_when_waiting() -> None:
    """Sends this process SIGINT once the calling thread has been asleep in one call whenever it was
    looked at for a while, such as in the wait for another rank. It may wake in between."""
    thread = threading.get_ident()
    state = Path(f"/proc/self/task/{threading.get_native_id()}/status")

    def look() -> tuple[Any, int, bool]:
        frame = sys._current_frames()[thread]
        return frame, frame.f_lasti, "S (sleeping)" in state.read_text()

    def interrupt() -> None:
        asleep = 0
        before = look()
        while asleep < 4:
            time.sleep(0.01)
            now = look()
            asleep = asleep + 1 if now == before and now[2] else 0
            before = now
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def steps_of(address: object) -> list[int]:
    with cairn.open(address, alone=True) as store:
        return store.steps()


def state_of(step: int) -> dict[str, Any]:
    """A small state that differs in each step."""
    return {"t": torch.full((1000,), float(step)), "step": step}


class Stateful:
    """An object whose state is what it was given."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def segment_files(store: Path) -> list[Path]:
    return sorted((store / "segments").iterdir())


def flip_byte(file: Path, offset: int) -> None:
    """Changes one bit of a file."""
    with open(file, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def damage(store: Path, payload: bytes) -> None:
    """Changes the first of these bytes in the segment that contains them."""
    for segment in segment_files(store):
        if (at := segment.read_bytes().find(payload)) >= 0:
            return flip_byte(segment, at)
    raise AssertionError("no segment contains the bytes")


def stored_files(path: Path) -> set[str]:
    """The objects of payload, tables and pending parts of a store."""
    return {
        str(each.relative_to(path))
        for folder in ("segments", "tables", "pending")
        for each in (path / folder).rglob("*")
        if each.is_file()
    }


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(widths[tensor.element_size()])


def assert_same_numbers(got: torch.Tensor, want: torch.Tensor) -> None:
    """Bit for bit, except that any NaN equals any NaN: torch's depends on the processor."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    nan = want.isnan()
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(bits(got)[~nan], bits(want)[~nan])


def more_memory(work: Callable[[], object]) -> int:
    """How many bytes more than now are resident at the peak of a call, in a process that
    `run_on_ranks` has started: others have the peak of their parent."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    before = _peak_bytes()
    work()
    return _peak_bytes() - before


def _peak_bytes() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def resident_bytes() -> int:
    """Resident memory of this process in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
