"""kv-bench gpu: reports why it cannot run, and completes on the simulated runtime.

What it measures there means nothing; that bytes are counted, and bars are drawn, can be seen.
"""

import json

import pytest

from tool_programs import BIN_DIR, run_program

MIB = 1 << 20
SIMULATED = "kv_bench_on_simulation"


@pytest.fixture
def gpu_rows(tmp_path):
    if not (BIN_DIR / SIMULATED).exists():
        pytest.skip("built without the CUDA layer: no kv-bench on the simulated runtime")

    def run(part, *words):
        done = run_program(SIMULATED, "gpu", "--dir", tmp_path, "--bytes", "2MiB", "--part", part,
                           "--json", *words)
        assert done.status == 0, done.err
        assert list(tmp_path.iterdir()) == []
        return [json.loads(line) for line in done.out.splitlines()]

    return run


def bars_of(rows):
    return {row["of"]: row for row in rows if row["what"] == "bar"}


def test_without_a_gpu_it_fails_with_the_reason(bench, tmp_path):
    done = bench("gpu", "--dir", tmp_path, "--bytes", "2MiB", "--json")
    if done.status == 0:
        pytest.skip("there is a GPU here")
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("kv-bench: no GPU can be measured here: ")
    assert len(done.err.splitlines()) == 1


def test_copies_are_measured_in_both_directions_with_plain_copies(gpu_rows):
    rows = gpu_rows("copies")
    bars = bars_of(rows)
    assert len(bars) == 4
    for of, bar in bars.items():
        assert bar["to"].startswith(of.partition(",")[0] + ", cudaMemcpyAsync")
        assert bar["bar"] == (0.85 if "small" in of else 0.95)
        assert bar["met"] == (bar["ratio"] >= bar["bar"])
    small = [row for row in rows if "small" in row["what"]]
    assert small and all(row["tensors"] > 20 and row["bytes"] <= 2 * MIB for row in small)


def test_the_digest_is_compared_with_a_reading_kernel(gpu_rows):
    rows = gpu_rows("digest")
    assert {row["bytes"] for row in rows if row["what"] == "digest kernel"} == {2 * MIB}
    assert bars_of(rows)["digest kernel"]["bar"] == 0.8
