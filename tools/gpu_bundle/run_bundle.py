"""Runs the tests and benchmarks in this folder, prints one table and writes results.json.

Needs only Python 3.11 or newer; see run.sh for the command line. start.py starts this program.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
# Only the tests that start kernels: the others take time and find nothing more.
KERNEL_TESTS = "DeviceQueueTest.*:DigestTest.*"
SANITIZER_FOUND = 99
TEST_PROGRAMS = ("cuda_layer_gpu_test", "cuda_small_budget_gpu_test", "nccl_gpu_test")
TEST_SECONDS = 1800
BENCH_PARTS = ("copies", "digest", "disk", "pages", "stall")


@dataclass
class Suite:
    """Outcome of a test program."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""


@dataclass
class Bench:
    """Outcome of a benchmark: the rows that it printed, or why it did not run."""

    name: str
    state: str  # "ran", "skipped" or "failed"
    note: str = ""
    rows: list[dict] = field(default_factory=list)

    @property
    def bars(self) -> list[dict]:
        return [row for row in self.rows if row.get("what") == "bar"]


def environment() -> dict[str, str]:
    """Returns this process's environment plus the folder's libraries and PyTorch's NCCL, if any."""
    env = dict(os.environ)
    before = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = str(HERE / "lib") + (f":{before}" if before else "")
    if "CAIRN_NCCL_LIBRARY" not in env and (nccl := find_nccl()):
        env["CAIRN_NCCL_LIBRARY"] = nccl
    return env


def find_nccl() -> str | None:
    """Returns libnccl.so.2 of the PyPI package that PyTorch depends on; None if it is not there."""
    for entry in sys.path:
        found = Path(entry) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if found.is_file():
            return str(found)
    return None


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def call(
    command: list[str], env: dict[str, str], seconds: float
) -> subprocess.CompletedProcess:
    """Runs a program; after a timeout, the status is 124."""
    try:
        return subprocess.run(
            command,
            env=env,
            timeout=seconds,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 124, "", f"not done after {seconds:g} s"
        )


def find_gpu() -> dict[str, str] | None:
    """Returns name and driver from nvidia-smi, or None."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    asked = call(
        [program, "--query-gpu=name,driver_version", "--format=csv,noheader"],
        dict(os.environ),
        60,
    )
    if asked.returncode != 0 or not asked.stdout.strip():
        return None
    name, _, driver = asked.stdout.splitlines()[0].partition(",")
    return {
        "name": name.strip(),
        "driver": driver.strip(),
        "count": str(len(asked.stdout.splitlines())),
    }


def read_suite(name: str, results: Path, ended: subprocess.CompletedProcess) -> Suite:
    """Counts GoogleTest's results; a program that died without writing them has failed."""
    suite = Suite(name)
    try:
        tests = [
            test
            for group in json.loads(results.read_text())["testsuites"]
            for test in group["testsuite"]
        ]
    except (OSError, ValueError, KeyError):
        suite.failed = 1
        suite.note = f"ended with status {ended.returncode}: {last_line(ended.stderr)}"
        return suite
    failures = [test for test in tests if test.get("failures")]
    skipped = [
        test
        for test in tests
        if test.get("result") == "SKIPPED" and test not in failures
    ]
    suite.failed = len(failures)
    suite.skipped = len(skipped)
    suite.passed = len([t for t in tests if t.get("result") == "COMPLETED"]) - len(
        failures
    )
    if failures:
        suite.note = "failed: " + ", ".join(
            f"{test['classname']}.{test['name']}" for test in failures[:5]
        )
    elif skipped:
        suite.note = skip_reason(ended.stdout)
    if ended.returncode != 0 and not failures:
        suite.failed = 1
        suite.note = f"ended with status {ended.returncode}: {last_line(ended.stderr)}"
    return suite


def skip_reason(output: str) -> str:
    """Returns the line that GoogleTest and tests/run.py print below the first "Skipped"."""
    lines = output.splitlines()
    for at, line in enumerate(lines[:-1]):
        if line.rstrip().endswith(": Skipped"):
            return lines[at + 1].strip()
    return "no reason was given"


def run_suite(program: str, env: dict[str, str]) -> Suite:
    if not (HERE / "bin" / program).exists():
        return Suite(
            program, skipped=1, note="not in this bundle: built without its headers"
        )
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        ended = call(
            [str(HERE / "bin" / program), f"--gtest_output=json:{results}"],
            env,
            TEST_SECONDS,
        )
        return read_suite(program, results, ended)


def with_package(env: dict[str, str]) -> dict[str, str]:
    """Returns `env` for Python programs that import the package."""
    return env | {"PYTHONPATH": f"{HERE / 'python'}:{env.get('PYTHONPATH', '')}"}


def run_python_tests(env: dict[str, str]) -> Suite:
    """Runs tests/run.py, which reports why it cannot run, and writes results like GoogleTest."""
    name = "Python tests"
    program = HERE / "tests" / "run.py"
    if not program.exists():
        return Suite(name, skipped=1, note="not in this bundle: built without Python")
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        command = [sys.executable, str(program), str(results)]
        return read_suite(
            name, results, call(command, with_package(env), TEST_SECONDS)
        )


def find_sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )


def run_sanitizer(tool: str, env: dict[str, str], why_not: str | None) -> Suite:
    name = f"kernels under {tool}"
    sanitizer = find_sanitizer()
    if why_not is None and sanitizer is None:
        why_not = "compute-sanitizer is not on the PATH"
    if why_not is not None:
        return Suite(name, skipped=1, note=why_not)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        ended = call(
            [
                sanitizer,
                "--tool",
                tool,
                "--error-exitcode",
                str(SANITIZER_FOUND),
                str(HERE / "bin" / "cuda_layer_gpu_test"),
                f"--gtest_filter={KERNEL_TESTS}",
                f"--gtest_output=json:{results}",
            ],
            env,
            TEST_SECONDS,
        )
        suite = read_suite(name, results, ended)
        if ended.returncode == SANITIZER_FOUND:
            suite.failed = max(suite.failed, 1)
            found = [
                line for line in ended.stdout.splitlines() if "ERROR SUMMARY" in line
            ]
            suite.note = (
                found[-1].strip("= ") if found else "the sanitizer found errors"
            )
        return suite


def read_rows(output: str) -> list[dict]:
    rows = []
    for line in output.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def run_bench(
    name: str, command: list[str], env: dict[str, str], why_not: str | None
) -> Bench:
    if why_not is not None:
        return Bench(name, "skipped", why_not)
    ended = call(command, env, TEST_SECONDS)
    rows = read_rows(ended.stdout)
    if ended.returncode != 0:
        return Bench(name, "failed", last_line(ended.stderr), rows)
    return Bench(name, "ran", "", rows)


def gpu_bench(
    part: str, options: argparse.Namespace, env: dict[str, str], why_not: str | None
) -> Bench:
    command = [
        str(HERE / "bin" / "kv-bench"),
        "gpu",
        "--dir",
        str(options.dir),
        "--json",
        "--part",
        part,
        "--bytes",
        options.bytes,
        "--repeat",
        str(options.repeat),
    ]
    note = ""
    if part == "disk":
        if shutil.which("fio"):
            command.append("--fio")
        else:
            note = "fio is not installed: no limit to compare with"
    bench = run_bench(part, command, env, why_not)
    bench.note = bench.note or note
    return bench


def python_bench(
    options: argparse.Namespace, env: dict[str, str], why_not: str | None
) -> Bench:
    """Runs compare_gpu.py, which reports (with status 77) why it cannot run."""
    env = with_package(env)
    command = [
        sys.executable,
        str(HERE / "bench" / "compare_gpu.py"),
        "--dir",
        str(options.dir),
        "--bytes",
        options.bytes,
        "--json",
    ]
    if why_not is None:
        ended = call([*command, "--check"], env, 300)
        if ended.returncode == 77:
            why_not = last_line(ended.stderr)
    return run_bench("dcp.async_save", command, env, why_not)


def human(value: float, unit: str) -> str:
    if unit == "bytes/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "s":
        return f"{value * 1e3:.2f} ms"
    return f"{value:.0f} {unit}"


def print_table(suites: list[Suite], benches: list[Bench]) -> None:
    print(f"\n{'TESTS':<34} {'PASSED':>7} {'FAILED':>7} {'SKIPPED':>8}  NOTE")
    for suite in suites:
        print(
            f"{suite.name:<34} {suite.passed:>7} {suite.failed:>7} {suite.skipped:>8}  "
            f"{suite.note}"
        )
    print(
        f"\n{'BENCHMARK':<40} {'FIGURE':>14} {'LIMIT':>14} {'RATIO':>8} {'BAR':>12}  MET"
    )
    for bench in benches:
        for bar in bench.bars:
            sign = ">=" if bar["bar_is"] == "at least" else "<="
            print(
                f"{bar['of']:<40} {human(bar['figure'], bar['unit']):>14} "
                f"{human(bar['limit'], bar['unit']):>14} {bar['ratio']:>8.4f} "
                f"{sign + ' ' + format(bar['bar'], 'g'):>12}  "
                f"{'met' if bar['met'] else 'NOT MET'}"
            )
        if bench.state != "ran" or bench.note:
            print(f"{bench.name:<40} {bench.state}: {bench.note}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.splitlines()[0])
    # run.sh's folder: the one of this file may be temporary.
    parser.add_argument("--folder", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--dir", type=Path, help="where benchmarks write (run.sh's folder)"
    )
    parser.add_argument("--bytes", default="4GiB", help="size of all tensors (4GiB)")
    parser.add_argument(
        "--repeat", type=int, default=5, help="runs of each measurement (5)"
    )
    parser.add_argument(
        "--out", type=Path, help="file for the results (results.json in run.sh's folder)"
    )
    options = parser.parse_args()
    options.dir = options.dir or options.folder
    options.out = options.out or options.folder / "results.json"
    # Found now instead of after the last benchmark.
    for option, folder in (("--dir", options.dir), ("--out", options.out.parent)):
        if not os.access(folder, os.W_OK | os.X_OK):
            parser.error(
                f"cannot write to {folder}: name another place with {option}"
            )
    return options


def main() -> int:
    options = parse()
    env = environment()
    gpu = find_gpu()
    version = (HERE / "VERSION").read_text().strip()
    print(version)
    print(f"Unpacked in: {HERE}")
    print(
        f"GPU: {gpu['name']}, driver {gpu['driver']}"
        if gpu
        else "GPU: nvidia-smi reports none"
    )
    suites = [run_suite(program, env) for program in TEST_PROGRAMS]
    # The programs look for the GPU themselves: nvidia-smi may be missing despite a driver.
    why_not = suites[0].note if suites[0].passed + suites[0].failed == 0 else None
    if gpu and why_not:
        suites.append(
            Suite(
                "the GPU is found",
                failed=1,
                note=f"nvidia-smi reports {gpu['name']}, but the tests do not find it",
            )
        )
    suites.append(run_python_tests(env))
    suites += [run_sanitizer(tool, env, why_not) for tool in SANITIZER_TOOLS]
    benches = [gpu_bench(part, options, env, why_not) for part in BENCH_PARTS]
    benches.append(python_bench(options, env, why_not))
    print_table(suites, benches)
    for row in (
        row for bench in benches for row in bench.rows if row.get("what") == "device"
    ):
        break
    options.out.write_text(
        json.dumps(
            {
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(
                    timespec="seconds"
                ),
                "version": version,
                "gpu": gpu,
                "host": platform.platform(),
                "suites": [asdict(suite) for suite in suites],
                "benchmarks": [asdict(bench) for bench in benches],
            },
            indent=1,
        )
        + "\n"
    )
    print(f"\nComplete results: {options.out}")
    failed = any(suite.failed for suite in suites) or any(
        b.state == "failed" for b in benches
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
