"""The bundle for GPU hosts: what it packs, and how its run.sh reports tests and benchmarks."""

import json
import shutil
import stat
import subprocess

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
echo '{"what": "device", "gpudirect_storage": "off: no library"}'
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

    def __init__(self, folder):
        self.folder = folder
        for name in ("bin", "bench"):
            (folder / name).mkdir(parents=True)
        for name in ("run.sh", "run_bundle.py"):
            shutil.copy2(REPOSITORY / "tools" / "gpu_bundle" / name, folder)
        shutil.copy2(REPOSITORY / "bench" / "compare_gpu.py", folder / "bench")
        tests = REPOSITORY / "tests" / "python" / "gpu"
        shutil.copytree(tests, folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "VERSION").write_text("a test\n")
        self.put("kv-bench", BENCH)

    def put(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, path="/usr/bin:/bin"):
        # The Python of the system, which has no PyTorch: importing it would take most of the time.
        done = subprocess.run(
            [self.folder / "run.sh"], capture_output=True, text=True, timeout=300,
            env={"PATH": path, "HOME": str(self.folder)})
        return done, json.loads((self.folder / "results.json").read_text())


@pytest.fixture
def bundle(tmp_path):
    return Bundle(tmp_path / "bundle")


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
    assert "GPUDirect Storage: off: no library" in done.stdout
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
    for module in (bundle.folder / "tests").glob("test_*.py"):
        module.unlink()
    (bundle.folder / "tests" / "gpu_machine.py").write_text("def why_not():\n    return None\n")
    (bundle.folder / "tests" / "test_some.py").write_text(
        "import unittest\n\n\nclass Some(unittest.TestCase):\n"
        "    def test_good(self):\n        pass\n\n"
        "    def test_bad(self):\n        self.assertEqual(1, 2)\n\n"
        "    def test_wrong(self):\n        raise ValueError('no')\n\n"
        "    def test_left_out(self):\n        self.skipTest('no such card')\n")
    (bundle.folder / "tests" / "test_broken.py").write_text("import there_is_no_such_module\n")
    done, results = bundle.run()
    assert done.returncode == 1
    suite = suite_of(results, "Python tests")
    assert (suite["passed"], suite["failed"], suite["skipped"]) == (1, 3, 1)
    assert all(f".{name}" in suite["note"] for name in ("test_bad", "test_wrong", "test_broken"))
    for module in (bundle.folder / "tests").glob("test_*.py"):
        module.unlink()
    (bundle.folder / "tests" / "test_some.py").write_text(
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
    assert not any(path.name.startswith(("libcuda.", "libc.", "libstdc++")) for path in files)
    # What is not in the folder must exist on every host.
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(moved / "lib")}
    for program in [*(moved / "bin").iterdir(), *moved.rglob("_cairn*.so")]:
        for line in subprocess.run(["ldd", program], env=env, capture_output=True,
                                   text=True).stdout.splitlines():
            name, _, place = line.strip().partition(" => ")
            own = place.startswith(str(moved))
            assert own or not place or name.startswith(
                ("libc.so", "libm.so", "libpthread.so", "libstdc++.so", "libgcc_s.so",
                 "libdl.so", "librt.so")), line
    done = subprocess.run([moved / "run.sh"], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TESTS" in done.stdout and "BENCHMARK" in done.stdout
    results = json.loads((moved / "results.json").read_text())
    assert not list(moved.rglob("_cairn*.so")) or suite_of(results, "Python tests")["skipped"] >= 3
    assert all(suite["passed"] + suite["skipped"] > 0 for suite in results["suites"])
