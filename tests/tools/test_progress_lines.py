"""Progress lines of the programs, on a real terminal and without one."""

import os
import re

import numpy as np
import pytest
from cairn_testing import run_on_terminal

from tool_programs import BIN_DIR, into_store, run_program

TENSORS = 640
AT_ONCE = {**os.environ, "CAIRN_TEST_QUIET_MS": "0"}  # and not after a second


@pytest.fixture(scope="module")
def many_tensors(memory_folder):
    """The path of a store whose two steps differ in each of many small tensors."""
    names = [f"layer{i}.weight" for i in range(TENSORS)]
    values = np.arange(TENSORS * 8, dtype=np.float32).reshape(TENSORS, 8)
    states = [dict(zip(names, values + change, strict=True)) for change in (0, 1)]
    return into_store(memory_folder / "many", *states)


def test_one_line_follows_the_values_of_all_tensors(many_tensors):
    words = ("diff", "--values", f"{many_tensors}@1", "@2")

    written, status = run_on_terminal([BIN_DIR / "kv-dump", *words], env=AT_ONCE)

    assert status == 1
    total = f"{TENSORS * 32 / 1024:.1f} KiB"
    pattern = rf"comparing [\d.]+ \w+ of {total} \([\d.<> %]+\)  [\d.]+ \w+/s  [\d.]+ \w+ left"
    assert re.search(pattern, written), written[:2000]
    assert written.endswith("\r\x1b[K")
    assert run_program("kv-dump", *words).err == ""
    assert run_program("kv-dump", *words, "--json").err == ""


def test_lines_that_count_have_a_rate(tmp_path):
    words = ("open", "--dir", tmp_path, "--chunks", 10, "--steps", 20, "--repeat", 1)

    written, _ = run_on_terminal([BIN_DIR / "kv-bench", *words], env=AT_ONCE)

    pattern = r"creating steps [\d,]+ of [\d,]+ \([\d.]+ %\)  [\d,.]+/s  [\d.]+ \w+ left"
    assert re.search(pattern, written), written[:2000]
