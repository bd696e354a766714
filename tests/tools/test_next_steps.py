"""Each error of the programs names what is wrong, where, and the next thing to try, which works."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile

import pytest
import torch
from cairn_testing import damage, flip_byte, wait_until
from safetensors.torch import save_file

from tool_programs import BIN_DIR, Finished

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
        ["bash", "-c", line], cwd=folder, env=ENVIRONMENT, capture_output=True
    )
    errors = process.stderr.replace(f"{folder}/".encode(), b"")
    return Finished(process.returncode, process.stdout.decode(), errors.decode())


def must_run(line, folder):
    finished = run_line(line, folder)
    assert finished.status == 0, (line, finished.out, finished.err)


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
        "mkdir runs && kv-admin push store runs/gpt",
        "mkdir 's p a c e' hidden && kv-admin push store 's p a c e/store'",
        "kv-admin import hidden/other --step 100 second.safetensors && mv hidden/other other",
    ):
        must_run(line, folder)
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


def newest(folder):
    """The table or segment that the last save has written."""
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def damage_payload(folder):
    damage(folder / "store", struct.pack("<4f", 0, 2, 4, 6))  # norm of step 200


def remove_segment(folder):
    newest(folder / "store/segments").unlink()


def damage_table(folder):
    table = newest(folder / "store/tables")
    table.write_bytes(bytes(table.stat().st_size))


def damage_root(folder):
    flip_byte(min((folder / "store/roots").iterdir()), 60)  # the newest is the first by name


def remove_roots(folder):
    for root in (folder / "store/roots").iterdir():
        root.unlink()


def damage_identity(folder):
    flip_byte(folder / "store/CAIRN", 20)


def cut_file(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])


def delete_all_steps(folder):
    must_run("kv-admin push store new && kv-admin delete new 200", folder)


# A command line in which {WRONG|RIGHT} fails with the first word and succeeds with the second, or
# that always fails; and what the message names: what is wrong, where, and what to try next.
REFUSED = [
    ("kv-dump{| --help}", "a verb is missing", "run kv-dump --help to list the verbs"),
    ("kv-dump {stesp|steps} store", "'stesp' is not a verb", "did you mean steps?"),
    ("kv-admin frobnicate", "'frobnicate' is not a verb", "the verbs are import, export, delete"),
    ("kv-dump {--verison|--version}", "no option '--verison'", "did you mean --version?"),
    ("kv-dump steps store{ more|}", "'more' is one argument too many", "write kv-dump steps STORE"),
    ("kv-dump show store{| norm}", "FQN is missing", "write kv-dump show STORE[@STEP] FQN"),
    ("kv-admin import store {|--step 7 }model.safetensors", "--step is missing",
     "write kv-admin import STORE --step N FILE..."),
    ("kv-dump space store --depth {x|100}", "--depth: 'x' is not a whole number",
     "write one such as 100"),
    ("kv-admin export store out.dcp --format {dpc|dcp}", "--format: 'dpc'", "not accepted",
     "did you mean dcp?"),
    ("kv-dump --completion {tcsh|fish}", "--completion", "no completion for 'tcsh'",
     "the shells are bash, zsh and fish"),
    ("kv-dump steps {stroe|store}", "there is no store here", "file stroe", "did you mean store?"),
    ("kv-dump {nothing-like-it|store}", "there is no store here", "file nothing-like-it",
     "in that directory: copy, other, store"),
    ("kv-dump {runs|runs/gpt}", "not a Cairn store", "file runs",
     "the stores in that directory: runs/gpt"),
    ("kv-dump {store/segments|store}", "not a Cairn store", "file store/segments",
     "did you mean store?"),
    ("{kv-dump|kv-admin import new --step 7} model.safetensors", "a file and not a Cairn store",
     "file model.safetensors", "STORE --step N model.safetensors"),
    ("{kv-dump shards|kv-admin import new --step 7 shards/*.safetensors}", "not a Cairn store",
     "file shards", "STORE --step N shards/*.safetensors"),
    ("kv-dump 's p a c {e/stor'|e/store'}", "there is no store here", "file s p a c e/stor",
     "did you mean 's p a c e/store'?"),
    ("kv-dump steps s3:/bucket", 'the address "s3:/bucket"', "the form s3://BUCKET/PREFIX"),
    ("kv-dump steps s3://bucket/runs", "found no credentials", "s3://bucket/runs/CAIRN",
     "set them, or choose a profile with AWS_PROFILE"),
    ("kv-dump steps {memory:run|store}", "'memory:run' is a store in the memory of one process",
     "give the address of a directory or a bucket"),
    ("kv-admin import store --step 7 {modle.safetensors|model.safetensors}", "cannot open the file",
     "file modle.safetensors", "did you mean model.safetensors?"),
    ("kv-admin import store --step 7 weights{| --format hf}", "without .metadata", "file weights",
     "or add --format hf to import a model"),
    ("kv-admin {import new --step 7 store|pull store new}", "a Cairn store", "file store",
     "kv-admin pull copies its steps"),
    ("kv-admin import store --step 7 model.safetensors{ --format hf|}", "the directory of a model",
     "file model.safetensors", "omit --format to import it"),
    ("kv-admin check-storage text.txt", "Not a directory", "file text.txt/cairn-check",
     "text.txt is a file and not a directory"),
    ("kv-dump {keys store@101|steps store}", "no such step; the store has 100, 200", "step 101",
     "kv-dump steps store lists all steps"),
    ("kv-dump keys {store@|store}", "'' is neither a step nor a tag",
     "only STORE for the latest step"),
    ("kv-dump keys {store@bets|store@best}", "no step has the tag 'bets'", "file store",
     "the store has best"),
    ("kv-dump steps {store@100|store}", "steps takes a store without a step", "omit @100"),
    ("kv-dump show store {nrom|norm}", "no such tensor", "step 200", "similar keys: norm"),
    ("kv-dump {show store layers|keys store@200}", "no such tensor", "key layers",
     "kv-dump keys store@200 lists all keys"),
    ("kv-dump history store {layers.0.wieght|layers.0.weight}", "no such tensor", "step 200",
     "similar keys: layers.0.weight, layers.1.weight"),
    ("kv-dump keys store {'a['|'a[[]'}", "pattern 'a['", "without its ']'",
     "write '[[]' for the character itself"),
    ("kv-dump show store norm --slice {9|-4}", "slice '9': out of range", "size 4",
     "write an index from -4 to 3"),
    ("kv-dump show store norm --slice {::2|0:2}", "only a step of 1", "write BEGIN:END"),
    ("{kv-dump diff store@100 copy@200|kv-admin push copy store}", "store and copy are two stores",
     "with kv-admin push copy store"),
    ("kv-admin import store --step 100 model.safetensors{| --overwrite}", "already exists",
     "step 100", "--overwrite replaces it"),
    ("kv-admin export store out --format {hf|safetensors}", "add cairn.hf.describe(model)",
     "'__weights__'", "--format safetensors exports any step"),
    ("kv-admin export store out.safetensors --shard-size {x|512M}", "'x' is not a size",
     "write 65536, 512M, 1.5GiB or 5GB"),
    ("kv-admin compact {store@100|store}", "concerns all steps", "write store without a step"),
    ("kv-admin prune store{| --keep-last 3}", "the store has no policy",
     "for example with --keep-last 3"),
    ("kv-admin prune {store@100|store} --keep-last 3", "prune chooses among all steps",
     "write store without a step"),
    ("kv-admin prune store --keep-last 1 --keep-best {loss|loss:1}",
     "'loss' does not name the best steps", "write METRIC:N"),
    ("kv-admin policy store {--none |}--keep-last 3", "--none removes the policy",
     "omit it to set one"),
    ("kv-admin compression store --on{ --off|}", "--on and --off exclude each other",
     "give one of them"),
    ("kv-admin untag {store@100|store} best", "the tag 'best' is that of step 200",
     "run kv-admin untag store best"),
    ("kv-admin tag {store|store@100} prod", "name the step", "kv-admin tag STORE@STEP NAME"),
    ("kv-admin merge {store@100|store@100,200} --into 7", "at least two steps", "name another one"),
    ("kv-admin merge store@100,200 --into 7 --weights {1|1,2}", "1 weights for 2 steps",
     "give one weight for each step"),
    ("kv-admin merge {store|store@100 store@200} --into 7", "'store' names no step",
     "write STORE@STEP"),
    ("{kv-admin rebuild|kv-dump verify} store", "there is nothing to rebuild", "file store",
     "kv-dump verify store checks the payload"),
]

# What is done to the store, a command line that fails then, the next thing to try, which makes the
# line succeed; and what the message names.
REPAIRED = [
    (None, "kv-dump steps empty/absent", "kv-admin push store empty/absent",
     "there is no store here", "file empty/absent", "kv-admin push create stores"),
    (None, "kv-admin import store --step 7 model.safetensors --rules text.txt",
     'echo \'[{"rename": "^model.", "to": ""}]\' > text.txt', "the rules are not JSON",
     "kv-admin: text.txt: ", "save_rules writes such a file"),
    (None, "kv-admin check-storage absent", "mkdir -p absent", "cannot create a directory",
     "file absent/cairn-check", "run mkdir -p absent first"),
    (None, "kv-dump report store -o absent/x.html", "mkdir -p absent", "cannot create the report",
     "absent/x.html", "run mkdir -p absent first"),
    (None, "kv-bench open --dir absent --chunks 10", "mkdir -p absent", "must be a directory",
     "file absent", "run mkdir -p absent"),
    (damage_payload, "kv-dump show store norm", "kv-admin repair store --from copy",
     "does not match its digest", "key norm, step 200", "kv-admin repair store --from MIRROR"),
    (remove_segment, "kv-dump show store norm", "kv-admin repair store --from copy", "No such file",
     "file store/segments/", "kv-admin repair store --from MIRROR"),
    (damage_table, "kv-dump keys store@200",
     "kv-admin rebuild store; kv-admin pull copy store --overwrite", "the table",
     "file store/tables/",
     "run kv-admin rebuild store to recover what is left, and then kv-admin pull MIRROR store"),
    (damage_root, "kv-dump steps store", "kv-admin rebuild store", "the root is damaged",
     "file store/roots/", "run kv-admin rebuild store"),
    (remove_roots, "kv-admin delete store 100", "kv-admin rebuild store",
     "roots of this store are missing", "file store", "run kv-admin rebuild store"),
    (damage_identity, "kv-dump store", "kv-admin pull copy new",
     "CAIRN does not match its checksum", "file store/CAIRN", "run kv-admin pull MIRROR NEW_STORE"),
    (cut_file, "kv-admin import new --step 7 model.safetensors",
     "cp backup.safetensors model.safetensors", "file model.safetensors",
     "get it again from its source"),
    (delete_all_steps, "kv-dump keys new", "kv-admin import new --step 1 model.safetensors",
     "the store has no steps yet; save one first (file new)"),
]


def run_refused(line, folder, named):
    failed = run_line(line, folder)
    assert failed.status == 2, (failed.status, failed.out, failed.err)
    program = shlex.split(line)[0]
    message = [text for text in failed.err.splitlines() if text.startswith(f"{program}: ")][-1]
    for words in named:
        assert words in message


@pytest.mark.parametrize("template, named", [(line, named) for line, *named in REFUSED])
def test_an_error_names_what_where_and_the_next_thing_to_try(template, named, folder):
    choice = re.compile(r"\{([^{}|]*)\|([^{}]*)\}")

    run_refused(choice.sub(r"\1", template), folder, named)

    if choice.search(template):
        must_run(choice.sub(r"\2", template), folder)


@pytest.mark.parametrize("harm, line, fix, named", [(*row[:3], row[3:]) for row in REPAIRED])
def test_what_an_error_names_repairs_it(harm, line, fix, named, folder):
    if harm:
        harm(folder)

    run_refused(line, folder, named)

    must_run(fix, folder)
    if line != "kv-dump store":  # the copy has another name
        must_run(line, folder)


def test_a_second_writer_learns_which_process_to_end(folder):
    roots = set((folder / "copy").glob("roots/*"))
    first = subprocess.Popen(
        ["kv-admin", "mirror", "store", "copy", "--follow"], cwd=folder, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
    )
    try:
        # The root of the first writer is the end of its open.
        wait_until(lambda: set((folder / "copy").glob("roots/*")) > roots)
        names = f"process {first.pid} on host", "close it there", "file copy/leases/"
        run_refused("kv-admin tag copy@100 x", folder, names)
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait()

    must_run("kv-admin tag copy@100 x", folder)


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
