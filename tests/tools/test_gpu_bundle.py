"""The bundle for GPU hosts: what it packs, and how its run.sh reports tests and benchmarks."""

import hashlib
import json
import os
import resource
import shutil
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tool_programs import BIN_DIR, REPOSITORY

GOOGLE_TEST = """#!/bin/sh
for word in "$@"; do
  case $word in --gtest_output=json:*) out=${{word#--gtest_output=json:}} ;; esac
done
cat >"$out" <<'END'
{results}
END
printf '%s' '{stdout}'
exit {status}
"""
BENCH = """#!/bin/sh
echo '{"what": "device"}'
echo '{"what": "bar", "of": "a figure", "to": "a limit", "figure": 9e9, "limit": 1e10, \
"unit": "bytes/s", "ratio": 0.9, "bar": 0.95, "bar_is": "at least", "met": false}'
"""
SKIPS = "test.cc:1: Skipped\nneeds a GPU: there is none\n"


def google_test(*tests, stdout="", status=0):
    """A program that writes these (name, "COMPLETED" or "SKIPPED", failed) as GoogleTest does."""
    results = {"testsuites": [{"testsuite": [
        {"classname": "Suite", "name": name, "result": result}
        | ({"failures": [{"failure": "wrong"}]} if failed else {})
        for name, result, failed in tests]}]}
    return GOOGLE_TEST.format(results=json.dumps(results), stdout=stdout, status=status)


class Bundle:
    """A folder like that of gpu-bundle.sh, with programs of the test."""

    def __init__(self, folder, contents):
        self.folder = folder
        self.contents = contents  # of bundle.tar.gz
        folder.mkdir()
        for name in ("bin", "bench"):
            (contents / name).mkdir(parents=True)
        tools = REPOSITORY / "tools" / "gpu_bundle"
        for name in ("run.sh", "start.py"):
            shutil.copy2(tools / name, folder)
        shutil.copy2(tools / "run_bundle.py", contents)
        shutil.copy2(REPOSITORY / "bench" / "compare_gpu.py", contents / "bench")
        tests = REPOSITORY / "tests" / "python" / "gpu"
        shutil.copytree(tests, contents / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (contents / "VERSION").write_text("a test\n")
        self.put("kv-bench", BENCH)

    @property
    def archive(self):
        return self.folder / "bundle.tar.gz"

    def put(self, name, text):
        path = self.contents / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def pack(self):
        """Writes the archive that the folder would contain after it was copied here again."""
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(self.contents, ".")
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        Path(f"{self.archive}.sha256").write_text(f"{digest}  bundle.tar.gz\n")

    def unpacked(self):
        return sorted(path for path in self.folder.iterdir()
                      if path.name.startswith(("unpacked-", "unpacking-")))

    def start(self, *options, path="/usr/bin:/bin", env=(), **how):
        # The Python of the system, which has no PyTorch: importing it would take most of the time.
        return subprocess.run(
            [self.folder / "run.sh", *options], capture_output=True, text=True, timeout=300,
            env={"PATH": path, "HOME": str(self.folder), **dict(env)}, **how)

    def run(self, **how):
        self.pack()
        done = self.start(**how)
        return done, json.loads((self.folder / "results.json").read_text())


@pytest.fixture
def bundle(tmp_path):
    return Bundle(tmp_path / "bundle", tmp_path / "contents")


def suite_of(results, name):
    (suite,) = [suite for suite in results["suites"] if suite["name"] == name]
    return suite


def test_where_nothing_can_run_all_is_skipped_with_the_reason(bundle):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "SKIPPED", False), stdout=SKIPS))
    done, results = bundle.run()
    assert done.returncode == 0, done.stdout + done.stderr
    suite = suite_of(results, "cuda_layer_gpu_test")
    assert (suite["passed"], suite["failed"], suite["skipped"]) == (0, 0, 1)
    assert suite["note"] == "needs a GPU: there is none"
    assert suite_of(results, "nccl_gpu_test")["note"].startswith("not in this bundle")
    python = suite_of(results, "Python tests")
    assert (python["passed"], python["failed"], python["skipped"]) == (0, 0, 3)
    assert python["note"].startswith("needs a GPU: PyTorch cannot be imported")
    assert {bench["state"] for bench in results["benchmarks"]} == {"skipped"}
    assert all("needs a GPU" in bench["note"] for bench in results["benchmarks"])
    assert done.stdout.count("needs a GPU: there is none") >= 9


def test_figures_stand_beside_limit_and_bar(bundle):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    done, results = bundle.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert suite_of(results, "cuda_layer_gpu_test")["passed"] == 1
    (line,) = {line for line in done.stdout.splitlines() if line.startswith("a figure")}
    assert line.split()[2:] == ["9.00", "GB/s", "10.00", "GB/s", "0.9000", ">=", "0.95", "NOT",
                                "MET"]
    assert suite_of(results, "kernels under racecheck")["note"]


def test_a_failed_test_is_named_and_fails_the_run(bundle):
    bundle.put("cuda_layer_gpu_test",
               google_test(("A", "COMPLETED", False), ("B", "COMPLETED", True), status=1))
    done, results = bundle.run()
    assert done.returncode == 1
    suite = suite_of(results, "cuda_layer_gpu_test")
    assert (suite["passed"], suite["failed"]) == (1, 1)
    assert "Suite.B" in suite["note"] and "Suite.B" in done.stdout


def test_python_tests_are_counted_and_failures_named(bundle):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    for module in (bundle.contents / "tests").glob("test_*.py"):
        module.unlink()
    (bundle.contents / "tests" / "gpu_machine.py").write_text("def why_not():\n    return None\n")
    (bundle.contents / "tests" / "test_some.py").write_text(
        "import unittest\n\n\nclass Some(unittest.TestCase):\n"
        "    def test_good(self):\n        pass\n\n"
        "    def test_bad(self):\n        self.assertEqual(1, 2)\n\n"
        "    def test_wrong(self):\n        raise ValueError('no')\n\n"
        "    def test_left_out(self):\n        self.skipTest('no such card')\n")
    (bundle.contents / "tests" / "test_broken.py").write_text("import there_is_no_such_module\n")
    done, results = bundle.run()
    assert done.returncode == 1
    suite = suite_of(results, "Python tests")
    assert (suite["passed"], suite["failed"], suite["skipped"]) == (1, 3, 1)
    assert all(f".{name}" in suite["note"] for name in ("test_bad", "test_wrong", "test_broken"))
    for module in (bundle.contents / "tests").glob("test_*.py"):
        module.unlink()
    (bundle.contents / "tests" / "test_some.py").write_text(
        "import unittest\n\n\nclass Some(unittest.TestCase):\n"
        "    def test_left_out(self):\n        self.skipTest('no such card')\n")
    done, results = bundle.run()
    assert done.returncode == 0
    assert suite_of(results, "Python tests")["note"] == "no such card"


def test_a_program_that_dies_fails_the_run(bundle):
    bundle.put("cuda_layer_gpu_test", "#!/bin/sh\necho 'no such library' >&2\nexit 127\n")
    done, results = bundle.run()
    assert done.returncode == 1
    assert suite_of(results, "cuda_layer_gpu_test")["note"] == (
        "ended with status 127: no such library")


def test_a_benchmark_that_fails_on_a_gpu_host_fails_the_run(bundle):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    bundle.put("kv-bench", "#!/bin/sh\necho 'kv-bench: out of memory' >&2\nexit 2\n")
    done, results = bundle.run()
    assert done.returncode == 1
    assert "kv-bench: out of memory" in done.stdout
    assert results["benchmarks"][0]["state"] == "failed"


def test_a_gpu_that_only_nvidia_smi_sees_fails_the_run(bundle, tmp_path):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "SKIPPED", False), stdout=SKIPS))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'Some GPU, 580.1'\n")
    (tools / "nvidia-smi").chmod(0o755)
    done, results = bundle.run(path=f"{tools}:/usr/bin:/bin")
    assert done.returncode == 1
    assert results["gpu"] == {"name": "Some GPU", "driver": "580.1", "count": "1"}
    assert "but the tests do not find it" in done.stdout


def test_the_programs_are_unpacked_once_and_run_from_any_folder(bundle, tmp_path):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    bundle.run(cwd=tmp_path)
    (home,) = bundle.unpacked()
    unpacked = {path: path.stat().st_ino for path in home.rglob("*") if path.is_file()}
    assert {path.relative_to(home) for path in unpacked if path.parent.name != "__pycache__"} == {
        path.relative_to(bundle.contents) for path in bundle.contents.rglob("*") if path.is_file()}
    (bundle.folder / "results.json").unlink()
    done = bundle.start(cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((bundle.folder / "results.json").read_text())["version"] == "a test"
    assert bundle.unpacked() == [home]
    assert {path: path.stat().st_ino for path in unpacked} == unpacked


def test_a_bundle_that_is_copied_over_an_older_one_runs_its_own_programs(bundle):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    bundle.run()
    older = bundle.unpacked()
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", True), status=1))
    done, results = bundle.run()
    assert done.returncode == 1
    assert suite_of(results, "cuda_layer_gpu_test")["failed"] == 1
    assert len(bundle.unpacked()) == 1 and bundle.unpacked() != older


def test_starts_at_the_same_time_share_the_programs(bundle, tmp_path):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    (bundle.contents / "large").write_bytes(os.urandom(8 << 20))  # takes some time to unpack
    bundle.pack()
    outs = [tmp_path / f"{number}.json" for number in range(3)]
    started = [
        subprocess.Popen([bundle.folder / "run.sh", "--out", out], stdout=subprocess.DEVNULL,
                         env={"PATH": "/usr/bin:/bin"})
        for out in outs]
    assert [process.wait(300) for process in started] == [0, 0, 0]
    for out in outs:
        assert suite_of(json.loads(out.read_text()), "cuda_layer_gpu_test")["passed"] == 1
    assert len(bundle.unpacked()) == 1


@pytest.mark.parametrize("size", [0, 1000, -1])
def test_an_incomplete_copy_is_refused_before_anything_is_unpacked(bundle, size):
    bundle.pack()
    bundle.archive.write_bytes(bundle.archive.read_bytes()[:size])
    done = bundle.start()
    assert done.returncode == 2
    assert "bundle.tar.gz is damaged or incomplete" in done.stderr
    assert "Copy the complete folder again" in done.stderr
    assert "Traceback" not in done.stderr
    assert not bundle.unpacked()
    bundle.archive.unlink()
    done = bundle.start()
    assert done.returncode == 2
    assert "No such file" in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_is_reported_and_leaves_nothing(bundle):
    (bundle.contents / "large").write_bytes(os.urandom(4 << 20))
    bundle.pack()

    def at_most_one_mebibyte_per_file():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = bundle.start(preexec_fn=at_most_one_mebibyte_per_file)
    assert done.returncode == 2
    assert "cannot unpack the programs, which need 5 MiB" in done.stderr
    assert "File too large" in done.stderr and "Free space there" in done.stderr
    assert "Traceback" not in done.stderr
    assert not bundle.unpacked()
    done = bundle.start()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_read_only_folder_runs_in_a_temporary_one(bundle):
    bundle.put("cuda_layer_gpu_test", google_test(("A", "COMPLETED", False)))
    bundle.pack()
    # root may write anywhere, and other users may not enter pytest's folders.
    user = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        folder = Path(place) / "bundle"
        shutil.move(bundle.folder, folder)
        bundle.folder = folder
        before = sorted(folder.iterdir())
        folder.chmod(0o555)
        scratch = Path(place) / "scratch"
        temporary = Path(place) / "tmp"
        for writable in (scratch, temporary):
            writable.mkdir()
            writable.chmod(0o777)
        env = {"TMPDIR": str(temporary)}

        done = bundle.start(env=env, user=user)
        assert done.returncode == 2
        assert f"cannot write to {folder}: name another place with --dir" in done.stderr
        done = bundle.start("--dir", scratch, "--out", scratch / "out.json", env=env, user=user)
        assert done.returncode == 0, done.stdout + done.stderr
        results = json.loads((scratch / "out.json").read_text())
        assert suite_of(results, "cuda_layer_gpu_test")["passed"] == 1
        assert f"Unpacked in: {temporary}/" in done.stdout
        assert sorted(folder.iterdir()) == before
        assert not list(temporary.iterdir())
        folder.chmod(0o755)


def test_programs_that_the_host_may_not_execute_are_reported(bundle):
    (bundle.contents / "bin" / "kv-bench").chmod(0o644)
    bundle.pack()
    done = bundle.start()
    assert done.returncode == 2
    assert "bin/kv-bench cannot be executed" in done.stderr and "noexec" in done.stderr


def test_a_host_without_python_is_reported(bundle, tmp_path):
    bundle.pack()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(shutil.which(name))
    done = bundle.start(path=str(tools))
    assert done.returncode == 2
    assert "needs python3" in done.stderr
    assert not bundle.unpacked()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_packed_folder_is_small_and_runs_elsewhere(tmp_path):
    if not (BIN_DIR / "cuda_layer_gpu_test").exists() or BIN_DIR != REPOSITORY / "build" / "bin":
        pytest.skip("built without the CUDA layer: there is nothing to pack")
    packed = subprocess.run(
        [REPOSITORY / "tools" / "gpu-bundle.sh", tmp_path / "packed"],
        capture_output=True, text=True)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    moved = tmp_path / "moved"
    (tmp_path / "packed").rename(moved)
    files = [path for path in moved.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 60 << 20
    done = subprocess.run([moved / "run.sh"], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TESTS" in done.stdout and "BENCHMARK" in done.stdout
    results = json.loads((moved / "results.json").read_text())
    assert all(suite["passed"] + suite["skipped"] > 0 for suite in results["suites"])
    (home,) = moved.glob("unpacked-*")
    assert not list(home.rglob("_cairn*.so")) or suite_of(results, "Python tests")["skipped"] >= 3
    programs = {path.name for path in (home / "bin").iterdir()}
    assert programs >= {"cuda_layer_gpu_test", "cuda_small_budget_gpu_test", "kv-bench"}
    assert not any(path.name.startswith(("libcuda.", "libc.", "libstdc++"))
                   for path in home.rglob("*"))
    # What is not in the folder must exist on every host.
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(home / "lib")}
    for program in [*(home / "bin").iterdir(), *home.rglob("_cairn*.so")]:
        linked = subprocess.run(["ldd", program], env=env, capture_output=True, text=True)
        assert linked.returncode == 0, linked.stderr
        for line in linked.stdout.splitlines():
            name, _, place = line.strip().partition(" => ")
            own = place.startswith(str(moved))
            assert own or not place or name.startswith(
                ("libc.so", "libm.so", "libpthread.so", "libstdc++.so", "libgcc_s.so",
                 "libdl.so", "librt.so")), line
