"""Standard streams that are full, closed or not read: the status and the message are right, and no
store is harmed."""

import os
import shutil
import subprocess

import cairn
import pytest
import torch
from cairn_testing import flip_byte
from safetensors.torch import save_file

from tool_programs import BIN_DIR, into_store, small_model, steps_of

INCOMPLETE = b"the command was carried out, but its output is incomplete: writing to standard"


@pytest.fixture
def store(two_steps, tmp_path):
    shutil.copytree(two_steps, tmp_path / "store")
    save_file(small_model(), tmp_path / "model.safetensors")
    return tmp_path / "store"


def run_with(redirections, *words):
    """Runs a program with standard streams as the shell redirects them; "| nobody" is a pipe whose
    other end is closed."""
    command = " ".join(f"'{word}'" for word in [BIN_DIR / words[0], *words[1:]])
    if redirections != "| nobody":
        return subprocess.run(["bash", "-c", f"exec {command} {redirections}"], capture_output=True)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        return subprocess.run(["bash", "-c", f"exec {command}"], stdout=pipe,
                              stderr=subprocess.PIPE)


# What each command changes, as (words, steps afterwards).
CHANGES = {
    "import": ("import {store} --step 300 {folder}/model.safetensors", [100, 200, 300]),
    "delete": ("delete {store} 100", [200]),
    "prune": ("prune {store} --keep-last 1", [200]),
    "compact": ("compact {store} --max-dead 0", [100, 200]),
    "push": ("push {store}@200 {folder}/other", [100, 200]),
    "tag": ("tag {store}@100 best", [100, 200]),
}


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", "> /dev/full 2> /dev/full",
                                         ">&- 2>&-", "<&- >&- 2>&-", "< /dev/null > /dev/full",
                                         "| nobody"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_lost_output_does_not_undo_the_change(store, dump, tmp_path, name, redirection):
    words, steps = CHANGES[name]
    words = words.format(store=store, folder=tmp_path).split()
    finished = run_with(redirection, "kv-admin", *words)
    assert finished.returncode == 2
    if "2>" not in redirection:
        assert finished.stderr.startswith(b"kv-admin: " + INCOMPLETE)
        assert finished.stderr.count(b"\n") == 1
    assert steps_of(store) == steps
    assert dump("verify", store).status == 0
    assert list((store / "leases").iterdir()) == []
    assert name != "push" or dump("verify", tmp_path / "other").status == 0


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-", "> /dev/full 2> /dev/full"])
def test_an_error_that_cannot_be_printed_is_the_exit_status(store, dump, redirection):
    for words in (["kv-dump", "keys", store / "nothing"], ["kv-admin", "delete", store, "1"]):
        assert run_with(redirection, *words).returncode == 2
    assert dump("verify", store).status == 0


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
@pytest.mark.parametrize("words", ["kv-admin --help", "kv-dump --version", "kv-dump keys --help"])
def test_help_that_cannot_be_printed_is_an_error(words, redirection):
    assert run_with(redirection, *words.split()).returncode == 2


def test_a_warning_that_cannot_be_printed_does_not_end_the_command(store, tmp_path):
    into_store(store, {"value": 1, "tensor": torch.ones(3)}, first=300)
    out = tmp_path / "out.safetensors"  # cannot contain the value
    assert run_with("2> /dev/full", "kv-admin", "export", f"{store}@300", out).returncode == 0
    assert out.exists()


def test_a_pipe_that_is_not_read_blocks_no_writer_and_loses_no_output(tmp_path):
    store = tmp_path / "store"
    state = {f"a tensor with a long name, number {i}": torch.ones(1) for i in range(3000)}
    with cairn.open(store, mode="a", grace=0) as writer:
        writer.save(1, state)
        process = subprocess.Popen([BIN_DIR / "kv-dump", "keys", f"{store}@1", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        first = process.stdout.read(1)  # it has begun to print, and waits for its reader
        for step in range(2, 6):
            writer.save(step, {"w": torch.ones(1000) * step})
            writer.delete(step - 1)
        assert process.poll() is None, "the output fits into the pipe"
        out, err = process.communicate()
        assert writer.steps() == [5]
    assert process.returncode == 0 and err == b""
    assert (first + out).count(b"a tensor with a long name") == 3000


def test_a_verification_reports_damage_even_if_nobody_reads_it(store):
    segment = max((store / "segments").iterdir(), key=lambda path: path.stat().st_size)
    flip_byte(segment, 4200)
    assert run_with("> /dev/null", "kv-dump", "verify", store).returncode == 1
    assert run_with("> /dev/full", "kv-dump", "verify", store).returncode == 2
