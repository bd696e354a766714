"""The lines of the README and of the tutorial, as printed, where real jobs run them."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("first_lines.py")
PAGES = pytest.mark.parametrize("page", ["readme", "tutorial"])


@pytest.fixture
def run_lines(environment):
    def run(*words, before=(), **options):
        done = subprocess.run(
            [*before, sys.executable, "-W", "ignore", PROGRAM, *words],
            capture_output=True,
            text=True,
            **{"env": environment, **options},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def assert_writable_by_the_group(folder):
    files = list(folder.rglob("*"))
    assert any(path.parent.name == "roots" for path in files)
    for path in files:
        mode = path.stat().st_mode & 0o777
        assert mode == (0o775 if path.is_dir() else 0o664), (path, oct(mode))


@PAGES
def test_in_a_directory_with_spaces_under_a_umask_for_a_group(run_lines, tmp_path, page):
    home = tmp_path / "my first  run"
    home.mkdir(mode=0o775)
    run_lines(page, cwd=home, umask=0o002)
    assert_writable_by_the_group(home)


@PAGES
def test_from_another_working_directory(run_lines, tmp_path, page):
    """Each address is relative, and the program leaves the directory as soon as it was opened."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    run_lines(page, elsewhere, cwd=home)
    assert not list(elsewhere.iterdir())


def test_workers_under_forkserver_read_the_store(run_lines, tmp_path):
    run_lines("workers", cwd=tmp_path)


# Users that no machine has, and their group.
USERS, GROUP = (61001, 61002), 61100


def as_user(user):
    """The words that run a program as one user of the group. It may read every file, because the
    interpreter can be in the home of root, but write only its own and those of the group."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={GROUP}",
            "--bounding-set=-all,+dac_read_search", "--inh-caps=-all,+dac_read_search",
            "--ambient-caps=-all,+dac_read_search"]  # fmt: skip


@pytest.fixture
def shared_folder():
    """A folder of the group, whose files belong to it. No parent of it is private."""
    if os.geteuid() != 0:
        pytest.skip("only root can become two users")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(folder, 0, GROUP)
        folder.chmod(0o2770)
        refused = [*as_user(USERS[0]), "touch", "/etc/cairn-test"]
        done = subprocess.run(refused, capture_output=True, text=True)
        if "Permission denied" not in done.stderr:
            pytest.skip(f"root cannot become another user here: {done.stderr}")
        yield folder
    finally:
        shutil.rmtree(folder)


def test_two_users_of_a_group_continue_one_run(run_lines, environment, shared_folder):
    first, second = map(as_user, USERS)
    options = {"cwd": shared_folder, "umask": 0o002, "env": {**environment, "HOME": "/nonexistent"}}

    run_lines("first-block", before=first, **options)
    run_lines("tutorial", before=second, **options)

    owners = {path.stat().st_uid for path in (shared_folder / "runs/add/roots").iterdir()}
    assert set(USERS) <= owners
    for words in (["kv-admin", "delete", "runs/add", "10", "60", "--now"],
                  ["kv-dump", "verify", "runs/add"]):  # fmt: skip
        done = subprocess.run([*first, *words], capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr


OPEN_FOR_WRITING = """
import cairn, sys
with cairn.open("store", mode="a"):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("proc", ["shown", "hidden"])
def test_a_live_writer_of_another_user_is_not_taken_for_dead(environment, shared_folder, proc):
    """Many machines of several users mount /proc so that each sees only its own processes."""
    mount = ["unshare", "--mount", "sh", "-c",
             'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]  # fmt: skip
    program = [sys.executable, "-c", OPEN_FOR_WRITING]
    first, second = ((mount if proc == "hidden" else []) + as_user(user) for user in USERS)
    options = {"cwd": shared_folder, "umask": 0o002, "env": environment, "text": True}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*first, *program], **streams, **options) as writer:
        if writer.stdout.readline() != "open\n":
            pytest.skip("root cannot mount /proc here")
        refused = subprocess.run([*second, *program], input="", capture_output=True, **options)
        assert "cairn.errors.Conflict" in refused.stderr, refused
        writer.kill()
    after = subprocess.run([*second, *program], input="", capture_output=True, **options)
    assert after.stdout == "open\n", after.stderr
