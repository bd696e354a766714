"""Each error of the programs names what is wrong, where, and the next thing to try, which works."""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
import torch
from safetensors.torch import save_file

from next_step_cases import CHANGES, COMMAND_LINES, DAMAGE, PATHS, STEPS_AND_KEYS
from tool_programs import BIN_DIR, Finished

CASES = [*COMMAND_LINES, *PATHS, *STEPS_AND_KEYS, *CHANGES, *DAMAGE]

# Only what the test itself sets: credentials and services of this machine must not be found.
ENVIRONMENT = {
    "PATH": f"{BIN_DIR}:{os.environ['PATH']}",
    "CAIRN_PYTHON": os.environ["CAIRN_PYTHON"],
    "HOME": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
    "LC_ALL": "C.UTF-8",
}


def run_line(line, folder):
    """Runs a command line in the shell, as a user would. In errors, addresses are absolute; here
    they are relative to the folder."""
    process = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=ENVIRONMENT, capture_output=True, timeout=120
    )
    errors = process.stderr.replace(f"{folder}/".encode(), b"")
    return Finished(process.returncode, process.stdout.decode(), errors.decode())


def tensors(scale):
    return {
        "norm": torch.arange(4.0) * scale,
        "layers.0.weight": torch.ones(16, 16) * scale,
        "layers.1.weight": torch.ones(16, 16),
    }


def prepare_folder(folder):
    """Stores and checkpoints of other formats: `copy` is a mirror of `store`, and `other` has
    another step 100."""
    for name, scale in (("model", 1.0), ("second", 2.0)):
        save_file(tensors(scale), folder / f"{name}.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "model.safetensors", folder / "backup.safetensors")
    torch.save(tensors(1.0), folder / "model.pt")
    (folder / "text.txt").write_text("not a checkpoint")
    (folder / "empty").mkdir()
    (folder / "weights").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "weights")
    (folder / "weights/config.json").write_text('{"model_type": "gpt2"}')
    (folder / "shards").mkdir()
    save_file({"a": torch.ones(2)}, folder / "shards/a.safetensors")
    save_file({"b": torch.ones(2)}, folder / "shards/b.safetensors")
    for line in (
        "kv-admin import store --step 100 model.safetensors",
        "kv-admin import store --step 200 second.safetensors --tag best",
        "kv-admin mirror store copy",
        "kv-admin export store@100 model.dcp",
        "mkdir runs && kv-admin push store runs/gpt",
        "mkdir 's p a c e' hidden && kv-admin push store 's p a c e/store'",
        "kv-admin import hidden/other --step 100 second.safetensors && mv hidden/other other",
    ):
        finished = run_line(line, folder)
        assert finished.status == 0, (line, finished.err)
    (folder / "hidden").rmdir()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("next_steps") / "prepared"
    folder.mkdir()
    prepare_folder(folder)
    return folder


@pytest.fixture
def folder(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "work", symlinks=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line[:60])
def test_each_error_names_what_where_and_the_next_thing_to_try(case, folder):
    if case.damage is not None:
        case.damage(folder)

    failed = run_line(case.line, folder)

    assert failed.status == 2, (failed.status, failed.out, failed.err)
    program = shlex.split(case.line)[0]
    message = [line for line in failed.err.splitlines() if line.startswith(f"{program}: ")][-1]
    for part in case.found:
        assert part in message
    assert case.next in message
    if not case.fix:
        return
    fixed = run_line(case.fix, folder)
    assert fixed.status == case.fixed_status, (case.fix, fixed.out, fixed.err)
    if case.works_then:
        again = run_line(case.line, folder)
        assert again.status == 0, (again.out, again.err)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line[:60])
def test_what_is_run_next_is_what_the_error_names(case):
    """The commands in the table are those of the messages, with names for their placeholders."""
    if not case.fix:
        return
    words = shlex.split(case.next.replace("?", " ").replace("'", " "))
    programs = ("kv-dump", "kv-admin", "kv-bench")
    verbs = {pair for pair in zip(words, words[1:]) if pair[0] in programs and pair[1].islower()}
    if not verbs or case.next.endswith("--help)"):
        return
    assert any(" ".join(verb) in case.fix for verb in verbs), (verbs, case.fix)


def test_a_second_writer_learns_which_process_to_end(folder):
    roots = set((folder / "copy").glob("roots/*"))
    first = subprocess.Popen(
        ["kv-admin", "mirror", "store", "copy", "--follow"], cwd=folder, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        # The root of the first writer is the end of its open.
        while set((folder / "copy").glob("roots/*")) <= roots:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.01)
        refused = run_line("kv-admin tag copy@100 x", folder)
        assert f"process {first.pid} on host" in refused.err
        assert "has this store open for writing; close it there" in refused.err
        assert "file copy/leases/" in refused.err
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait(60)

    assert run_line("kv-admin tag copy@100 x", folder).status == 0


def test_a_full_disk_works_again_once_there_is_space(folder):
    mounted = run_line("mkdir disk && unshare -m mount -t tmpfs tmpfs disk", folder)
    if mounted.status != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.err}")
    script = """
        mount -t tmpfs -o size=256k tmpfs disk || exit 9
        head -c 1M /dev/zero > disk/filler 2> filler.err
        kv-admin push store disk/store; echo "first: $?"
        rm disk/filler
        kv-admin push store disk/store > pushed.txt; echo "second: $?"
    """

    finished = run_line(f"unshare -m bash -c {shlex.quote(script)}", folder)

    assert "first: 2" in finished.out, (finished.out, finished.err)
    assert "No space left on device; free some space and try again (file disk/store" in finished.err
    assert "second: 0" in finished.out, finished.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_a_refused_permission_names_who_must_get_access(prepared):
    with tempfile.TemporaryDirectory(prefix="cairn-test-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        shutil.copytree(prepared / "store", folder / "store")
        (folder / "store").chmod(0o700)
        as_nobody = f"setpriv --reuid 65534 --clear-groups kv-dump steps {folder}/store"
        if run_line("setpriv --reuid 65534 --clear-groups kv-dump --version", folder).status != 0:
            pytest.skip("another user cannot run the programs of this build")

        refused = run_line(as_nobody, "/")

        assert refused.status == 2
        assert "Permission denied; give this user access, or run as the owner" in refused.err
        assert f"(file {folder}/store" in refused.err
        (folder / "store").chmod(0o755)
        assert run_line(as_nobody, "/").status == 0


def test_a_store_without_steps_asks_for_one(folder):
    assert run_line("kv-admin push store new && kv-admin delete new 200", folder).status == 0

    refused = run_line("kv-dump keys new", folder)

    assert refused.err == "kv-dump: the store has no steps yet; save one first (file new)\n"
    assert run_line("kv-admin import new --step 1 model.safetensors", folder).status == 0
    assert run_line("kv-dump keys new", folder).status == 0


def test_verify_and_repair_name_each_other_and_the_rebuild(folder):
    DAMAGE[0].damage(folder)

    verified = run_line("kv-dump verify store", folder)
    repaired = run_line("kv-admin repair store", folder)

    assert verified.status == repaired.status == 1
    assert verified.out.endswith(
        "kv-admin repair store --from MIRROR replaces damaged bytes by good copies; kv-admin "
        "rebuild store recovers lost tables and roots\n"
    )
    assert repaired.out.endswith(
        "--from STORE names another store with good copies, such as a mirror; for lost tables and "
        "roots, run kv-admin rebuild\n"
    )
    assert run_line("kv-admin repair store --from copy", folder).status == 0
    assert run_line("kv-dump verify store", folder).status == 0
