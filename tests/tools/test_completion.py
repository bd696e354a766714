"""Completion in bash, zsh and fish."""

import os
import pty
import re
import select
import shutil
import time

import pytest
import torch

import cairn
from tool_programs import BIN_DIR, into_store


@pytest.fixture
def complete(dump):
    """Returns the candidates for the last word, without their help."""

    def candidates(*words):
        lines = dump("--complete", *words).out.splitlines()
        return [line.split("\t")[0] for line in lines]

    return candidates


def test_verbs_and_options(complete):
    assert complete("hi") == ["history"]
    assert {"steps", "keys", "verify"} <= set(complete(""))
    assert complete("keys", "--st") == ["--statistics"]
    assert complete("--ver") == ["--version"]
    assert complete("keys", "--where", "--st") == []


def test_choices_of_an_option(admin):
    assert admin("--complete", "import", "--format", "").out == "hf\n"


def test_steps_and_tags(complete, admin, two_steps, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(two_steps, store)
    admin("tag", f"{store}@100", "best")
    assert complete("keys", f"{store}@") == [f"{store}@200", f"{store}@100", f"{store}@best"]
    assert complete("keys", f"{store}@1") == [f"{store}@100"]
    assert complete("diff", f"{store}@100", "@2") == ["@200"]
    assert complete("keys", f"{store}") == []  # the shell completes the path


def test_keys_up_to_the_next_element(complete, two_steps):
    assert complete("show", f"{two_steps}@100", "mo") == ["model."]
    keys = complete("show", f"{two_steps}@100", "model.w")
    assert "model.wte." in keys
    assert complete("show", f"{two_steps}", "model.wte.") == ["model.wte.weight"]
    assert complete("show", f"{two_steps}@300", "mo") == []


def test_patterns_are_completed_with_escapes(complete, tmp_path):
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"h[0]": {"w": torch.ones(1)}})
    assert complete("keys", f"{tmp_path}/s", "h") == ["h[[]0]."]
    assert complete("show", f"{tmp_path}/s", "h") == ["h[0]."]


def test_a_store_that_cannot_be_read_has_no_candidates(complete, tmp_path):
    (tmp_path / "CAIRN").write_bytes(b"\0" * 100)
    assert complete("show", str(tmp_path), "a") == []
    assert complete("keys", f"{tmp_path}@") == []
    assert complete("keys", "s3://bucket/store@") == []


def test_names_with_control_characters_are_left_out(complete, tmp_path):
    state = {"plain": torch.ones(1), "a\x1b]0;title\x07": torch.ones(1), "a\tb": 1}
    assert complete("show", into_store(tmp_path / "store", state), "") == ["plain"]


class Terminal:
    """An interactive shell in a pseudoterminal."""

    def __init__(self, command, folder):
        self.process_id, self.terminal = pty.fork()
        if self.process_id == 0:
            settings = {"PATH": f"{BIN_DIR}:{os.environ['PATH']}", "HOME": str(folder),
                        "TERM": "xterm", "PS1": "$ ", "LANG": "C.UTF-8"}
            os.chdir(folder)
            os.execvpe(command[0], command, settings)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, pattern, timeout=1200):
        """Returns what the shell has printed until `pattern` matches it."""
        raw = text = ""
        deadline = time.monotonic() + timeout
        while not re.search(pattern, text):
            ready, _, _ = select.select([self.terminal], [], [], deadline - time.monotonic())
            assert ready, f"{pattern!r} is not in {text!r}"
            raw += os.read(self.terminal, 4096).decode(errors="replace")
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x07\r]", "", raw)
            while "\x08" in text:  # the cursor goes back, and what follows is overwritten
                text = re.sub(r"[^\x08]?\x08", "", text, count=1)
        return text

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.process_id, 0)


SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'source <(kv-dump --completion bash)'),
    "zsh": (["zsh", "-f", "-i"],
            "autoload -U compinit && compinit -u -D; source <(kv-dump --completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "kv-dump --completion fish | source"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_steps_and_keys(shell, two_steps, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    os.symlink(two_steps, tmp_path / "run")
    command, load = SHELLS[shell]
    terminal = Terminal(command, tmp_path)
    try:
        terminal.type(f"{load}; echo load''ed\r")
        terminal.read_until("loaded")
        terminal.type("kv-dump hist\t")
        terminal.read_until("history ")
        terminal.type("run model.wt\t")
        terminal.read_until(r"model\.wte\.")
        terminal.type("wei\t")
        terminal.read_until("weight")
        terminal.type("\x15echo ready\r")
        terminal.read_until("ready\n")
        terminal.type("kv-dump keys run@1\t")
        terminal.read_until("run@100")
    finally:
        terminal.close()
