"""The programs of bench/ with their smallest sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import scaling

ROOT = Path(__file__).resolve().parents[2]


def run(program, *words, status=0):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / program, *words],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


def test_growth_is_measured_by_steps(tmp_path):
    run("scaling.py", "--dir", tmp_path / "dir", "--out", tmp_path, "--parts", "steps",
        "--largest", "10")  # fmt: skip
    points = json.loads((tmp_path / "scaling.json").read_text())["points"]["steps"]
    assert [point["size"] for point in points] == [1, 10]
    assert points[1]["figures"]["save of a small step"]["metadata"] > 0
    assert "| processor time | 1 | 10 | exponent |" in (tmp_path / "scaling.md").read_text()
    assert list((tmp_path / "dir").iterdir()) == []


def test_exponents_are_slopes_in_logarithms():
    points = [(1, 5.0), (10, 2.0), (100, 20.0), (1000, 200.0)]
    assert scaling.exponent(points, noise=1) == pytest.approx(1)
    assert scaling.exponent([(10, 0.001), (100, 0.01)], noise=0.02) is None


def test_cairn_is_measured_in_a_bucket(tmp_path):
    if not (ROOT / ".venv" / "bin" / "weed").exists():
        pytest.skip("weed is not installed")
    run("buckets.py", "--dir", tmp_path / "dir", "--out", tmp_path, "--only", "cairn",
        "--bytes", str(21 << 20), "--rounds", "1")  # fmt: skip
    runs = json.loads((tmp_path / "buckets.json").read_text())["runs"]
    assert [(name, work) for name, work, _ in runs] == [
        ("cairn", "save"), ("cairn", "load_into"), ("cairn", "load_keys"),
    ]  # fmt: skip
    assert "| cairn |" in (tmp_path / "buckets.md").read_text()


def test_killed_saves_and_flipped_bits_are_counted(tmp_path):
    run("libraries.py", "cairn", "safetensors", "--dir", tmp_path / "dir", "--out", tmp_path,
        "--layers", "2", "--kills", "2", "--flips", "3")  # fmt: skip

    libraries = json.loads((tmp_path / "libraries.json").read_text())["libraries"]
    for library in libraries.values():
        assert all(sum(counts.values()) == 2 for counts in library["kills"].values())
        assert all(sum(counts.values()) == 3 for counts in library["flips"].values())
    cairn = libraries["cairn"]
    for counts in cairn["kills"].values():
        assert not {"damaged", "nothing"} & counts.keys()
    assert "wrong" not in cairn["flips"]["all bytes"] | cairn["flips"]["the records"]
    page = (tmp_path / "libraries.md").read_text()
    assert "## Killed saves" in page and "| safetensors, a new step |" in page
    assert list((tmp_path / "dir").iterdir()) == []


def test_loops_continue_bit_for_bit(tmp_path):
    run("loops.py", "Cairn", "torch.save", "--dir", tmp_path / "dir", "--out", tmp_path,
        "--width", "32", "--repeat", "1")  # fmt: skip

    loops = json.loads((tmp_path / "loops.json").read_text())["loops"]
    assert all(run["stall"] <= run["durable"] for [run] in loops.values())
    rows = (tmp_path / "loops.md").read_text().splitlines()
    assert sum(row.startswith(("| Cairn |", "| torch.save |")) for row in rows) == 2
    assert list((tmp_path / "dir").iterdir()) == []


def test_a_stall_is_measured_with_both_kinds_of_staging(tmp_path):
    done = run("gpu.py", "stall", "--dir", tmp_path, "--device", "cpu", "--bytes", "3e6",
               "--repeat", "1", "--peers", "cairn,snapshot")  # fmt: skip
    rows = [line.split()[0] for line in done.stdout.splitlines() if "of the step" in line]
    assert rows == ["cairn", "snapshot"]
    done = run("gpu.py", "pages", "--dir", tmp_path, "--device", "cpu", "--bytes", "3e6",
               "--repeat", "1")  # fmt: skip
    assert done.stdout.count("ratio: bytes over the bus, ") == 2
    assert list(tmp_path.iterdir()) == []


def test_loads_to_a_device_are_compared_and_checked(tmp_path):
    done = run("gpu.py", "loads", "--dir", tmp_path, "--device", "cpu", "--bytes", "3e6",
               "--repeat", "1")  # fmt: skip
    ways = ("cairn, existing tensors", "cairn, new tensors")
    for cache in ("page cache", "disk"):
        assert all(f"ratio: {cache}, {way}: " in done.stdout for way in ways)
        assert all(f"{cache}: {way} " in done.stdout
                   for way in (*ways, "safetensors", "torch.load", "torch.load(mmap)"))  # fmt: skip
    assert list(tmp_path.iterdir()) == []
