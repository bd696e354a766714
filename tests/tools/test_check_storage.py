"""kv-admin check-storage: good storages pass, and broken ones are refused.

Broken file systems are simulated by a library that replaces system calls of the program.
"""

import os
import shutil
import signal
import subprocess

import pytest

from cairn_testing import wait_until
from tool_programs import BIN_DIR

ROUNDS = ("--rounds", 20)

# Each fault is compiled in by its name.
SHIM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(LINK_REPLACES) || defined(LINK_IS_MISSING) || defined(LINK_RACES)
int linkat(int from_directory, const char* from, int to_directory, const char* to, int flags) {
#ifdef LINK_IS_MISSING
  errno = EPERM;
  return -1;
#endif
#ifdef LINK_RACES /* Two winners only if they are at the same time. */
  struct stat status;
  if (syscall(SYS_newfstatat, to_directory, to, &status, 0) == 0) { errno = EEXIST; return -1; }
  struct timespec pause = {0, 2000000};
  nanosleep(&pause, 0);
#endif
  char copy[4096];
  snprintf(copy, sizeof(copy), "%s.link", from);
  if (syscall(SYS_linkat, from_directory, from, from_directory, copy, 0) != 0) return -1;
  return syscall(SYS_renameat, from_directory, copy, to_directory, to);
}
int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
#endif

/* A directory that was opened as SECOND shows new names after 50 ms. */
#ifdef PUTS_ARE_LATE
static char is_second[1024];
static int is_late(int directory, const char* name) {
  struct stat status;
  struct timespec now;
  if (directory < 0 || directory >= 1024 || !is_second[directory]) return 0;
  if (strstr(name, "visible/") == 0) return 0;
  if (syscall(SYS_newfstatat, directory, name, &status, 0) != 0) return 0;
  clock_gettime(CLOCK_REALTIME, &now);
  return (now.tv_sec - status.st_ctim.tv_sec) * 1e9 + now.tv_nsec - status.st_ctim.tv_nsec < 5e7;
}
int openat(int directory, const char* name, int flags, ...) {
  va_list list;
  va_start(list, flags);
  int mode = va_arg(list, int);
  va_end(list);
  if (is_late(directory, name)) { errno = ENOENT; return -1; }
  int file = syscall(SYS_openat, directory, name, flags, mode);
  if (file >= 0 && file < 1024) is_second[file] = strstr(name, "SECOND") != 0;
  return file;
}
int openat64(int directory, const char* name, int flags, ...) __attribute__((alias("openat")));
int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  int mode = va_arg(list, int);
  va_end(list);
  return openat(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int fstatat(int directory, const char* name, struct stat* status, int flags) {
  if (is_late(directory, name)) { errno = ENOENT; return -1; }
  return syscall(SYS_newfstatat, directory, name, status, flags);
}
#endif

/* Replaces in place instead of with a rename, and pauses so that a reader sees both versions. */
#ifdef RENAME_TEARS
int renameat(int from_directory, const char* from, int to_directory, const char* to) {
  static char bytes[1 << 16];
  int source = syscall(SYS_openat, from_directory, from, O_RDONLY, 0);
  int target = syscall(SYS_openat, to_directory, to, O_WRONLY | O_CREAT, 0644);
  ssize_t size;
  while ((size = read(source, bytes, sizeof(bytes))) > 0) {
    for (ssize_t i = 0; i < size; i += 256) {
      if (i == size / 512 * 256) usleep(2000);
      if (write(target, bytes + i, size - i < 256 ? size - i : 256) < 0) return -1;
    }
  }
  close(source);
  close(target);
  return unlinkat(from_directory, from, 0);
}
#endif

#ifdef FSYNC_FAILS
int fsync(int file) { errno = EIO; return -1; }
#endif

#ifdef DIRECTORY_SYNC_IS_MISSING
int fsync(int file) { errno = EINVAL; return -1; }
#endif

#ifdef MMAP_IS_MISSING
void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  if (file >= 0 && (protection & PROT_WRITE) && (flags & MAP_NORESERVE)) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  return (void*)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
#endif
"""


@pytest.fixture(scope="module")
def fault(tmp_path_factory):
    """Compiles the library with a fault, and returns the environment that loads it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("shims")
    (folder / "shim.c").write_text(SHIM)

    def build(name):
        library = folder / f"{name}.so"
        words = [compiler, "-shared", "-fPIC", f"-D{name}", folder / "shim.c", "-o", library]
        subprocess.run(words, check=True)
        return {**os.environ, "LD_PRELOAD": str(library)}

    return build


@pytest.fixture
def two_mounts(tmp_path):
    """A directory under two names. The second one contains SECOND, which faults look for."""
    (tmp_path / "first").mkdir()
    (tmp_path / "SECOND").symlink_to("first")
    return tmp_path / "first", tmp_path / "SECOND"


def results(finished):
    return {row["check"]: (row["result"], row["detail"]) for row in finished.json()["checks"]}


def test_a_directory_passes_and_is_left_as_it_was(admin, tmp_path):
    (tmp_path / "precious").write_text("text")
    finished = admin("check-storage", tmp_path, status=0)
    lines = finished.out.splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "DETAIL"]
    assert "FAILED" not in finished.out
    assert "one winner in 200 rounds of 6 racers" in finished.out
    assert lines[-1].endswith("name a second mount to check what other machines see")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_two_mounts_pass(admin, two_mounts):
    finished = admin("check-storage", *two_mounts, *ROUNDS, "--json", status=0)
    document = finished.json()
    assert document["address"] == str(two_mounts[0])
    assert document["second_address"] == str(two_mounts[1])
    assert document["failed"] == 0
    assert len(document["checks"]) == 14
    assert list(two_mounts[0].iterdir()) == []


def test_a_storage_without_files_has_fewer_checks(admin):
    finished = admin("check-storage", "memory:test", *ROUNDS, "--json", status=0)
    assert {result for result, _ in results(finished).values()} <= {"ok", "note"}
    assert "link, raced" not in results(finished)


@pytest.mark.parametrize(
    "name, check, expected, detail",
    [
        ("LINK_REPLACES", "put if absent", "FAILED", "replaced an object that exists"),
        ("LINK_REPLACES", "put if absent, raced", "FAILED", "several winners in 20 of 20 rounds"),
        ("LINK_IS_MISSING", "put if absent", "FAILED", "Operation not permitted"),
        ("PUTS_ARE_LATE", "puts are visible", "FAILED", "a new object was not found in"),
        ("RENAME_TEARS", "replace atomically", "FAILED", "mixed two versions"),
        ("FSYNC_FAILS", "durable put", "FAILED", "Input/output error"),
        ("MMAP_IS_MISSING", "memory mapping", "note", "loads cannot map"),
        ("DIRECTORY_SYNC_IS_MISSING", "directory sync", "note", "refused"),
    ],
)
def test_a_file_system_without_what_cairn_requires_is_refused(
    admin, fault, two_mounts, name, check, expected, detail
):
    finished = admin("check-storage", *two_mounts, *ROUNDS, "--json", env=fault(name))
    assert finished.status == (1 if expected == "FAILED" else 0), finished.out + finished.err
    result, found = results(finished)[check]
    assert result == expected and detail in found, finished.out
    assert (finished.json()["failed"] > 0) == (expected == "FAILED")
    assert list(two_mounts[0].iterdir()) == []


def test_a_race_that_two_win_does_not_fail_the_puts_in_turn(admin, fault, two_mounts):
    finished = admin("check-storage", *two_mounts, *ROUNDS, "--json", env=fault("LINK_RACES"))
    assert finished.status == 1
    found = results(finished)
    for check in ("put if absent, raced", "link, raced"):
        assert found[check][0] == "FAILED" and "several winners in" in found[check][1]
    assert found["put if absent"][0] == "ok"


@pytest.mark.parametrize(
    "words, reason",
    [
        (["absent"], "No such file or directory"),
        (["there", "other"], "is not another mount of"),
        (["there", "absent"], "is not another mount of"),
        (["there", "memory:x"], "different kinds"),
        (["nonsense:x"], "unknown kind of storage"),
        ([""], "has no path or name"),
    ],
)
def test_checks_that_cannot_run_say_why(admin, tmp_path, words, reason):
    (tmp_path / "there").mkdir()
    (tmp_path / "other").mkdir()
    assert reason in admin("check-storage", *words, cwd=tmp_path, status=2).err
    assert list((tmp_path / "there").iterdir()) == []


def test_an_interrupted_check_removes_what_it_wrote(tmp_path):
    words = [BIN_DIR / "kv-admin", "check-storage", tmp_path, "--rounds", "100000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    wait_until(lambda: list(tmp_path.glob("*/races/*")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 2 and b"interrupted" in errors
    assert list(tmp_path.iterdir()) == []
