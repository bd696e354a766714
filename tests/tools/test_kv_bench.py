"""kv-bench measures what it reports, with sizes that are small enough for every machine."""

import json
import os

import pytest

COMMON = {"verb", "seconds", "cpu_seconds", "peak_resident_bytes"}


def rows(finished):
    assert finished.status == 0, finished.err
    return [json.loads(line) for line in finished.out.splitlines()]


@pytest.mark.parametrize("verb", ["save", "load", "partial", "incremental", "digest"])
def test_a_model_is_measured_and_leaves_nothing(bench, tmp_path, verb):
    measured = rows(bench(verb, "--dir", tmp_path, "--bytes", "2MiB", "--repeat", 2, "--json"))
    kinds = {"incremental": ["nothing changed", "1 % changed"]}.get(verb, [verb])
    assert [(r["what"], r["run"]) for r in measured] == [(k, n) for n in (1, 2) for k in kinds]
    size = 20968 if verb == "partial" else 2096800  # 100 tensors, or one of them
    for row in measured:
        assert row.keys() >= {*COMMON, "bytes_per_second"} and row["verb"] == verb
        assert row["bytes"] == size and row["seconds"] > 0
    if verb == "save":
        assert [row["payload_written_bytes"] for row in measured] == [size] * 2
    if verb == "incremental":
        assert [row["payload_written_bytes"] for row in measured] == [0, 20968] * 2
    if verb in ("load", "partial"):
        assert all(size <= row["bytes_read"] <= size + 100 * 4096 for row in measured)
    assert list(tmp_path.iterdir()) == []


def test_open_measures_a_fresh_process_and_keeps_its_store(bench, tmp_path):
    words = ("open", "--dir", tmp_path, "--chunks", 1000, "--steps", 20, "--json")
    first = rows(bench(*words))
    opens = first[:4]
    assert [r["what"] for r in opens] == [
        f"{cache} open{of}" for cache in ("cold", "warm") for of in ("", ", 20 steps")
    ]
    assert all(COMMON <= r.keys() and r["first_key_bytes"] == 6400 for r in opens)
    assert all(r["chunks"] == 1000 and r["fresh_process"] for r in opens)
    assert all(r["seconds"] > 0 for r in opens)
    assert {(r["of"], r["to"]) for r in first if r["what"] == "bar"} == {
        ("cold open", "6.00 ms"), ("cold open, 20 steps", "cold open"),
        ("warm open", "2.00 ms"), ("warm open, 20 steps", "warm open"),
    }  # fmt: skip
    stores = [tmp_path / name / "CAIRN" for name in ("open-1000", "open-1000-20")]
    made = [path.stat().st_mtime_ns for path in stores]
    rows(bench(*words))
    assert made == [path.stat().st_mtime_ns for path in stores]


def test_commit_is_compared_with_a_table_of_its_records(bench, tmp_path):
    measured = rows(bench("commit", "--dir", tmp_path, "--ranks", 8, "--chunks", 500, "--json"))
    commit, memory, limit, ratio = measured
    assert commit["what"] == "commit" and commit["chunks"] == 500 and COMMON <= commit.keys()
    assert memory["to"] == "256 MiB" and memory["figure"] > 0
    assert limit["what"] == "SstFileWriter" and limit["seconds"] > 0
    assert ratio["of"] == "commit" and ratio["bar"] == 1.3
    assert list(tmp_path.iterdir()) == []


def test_a_bad_setting_in_the_environment_is_one_clear_error(bench, tmp_path):
    environment = {**os.environ, "CAIRN_IO_DEPTH": "many"}
    refused = bench("commit", "--dir", tmp_path, "--ranks", 2, "--chunks", 2, env=environment)
    assert refused.status == 2
    assert "CAIRN_IO_DEPTH is 'many'; it must be an integer from 1 to 1024" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("save", "--dir", ".", "--bytes", "1KiB"),
        ("commit",),
        ("commit", "--dir", "/nonexistent"),
        ("commit", "--dir", ".", "--ranks", "1"),
        ("gpu", "--dir", ".", "--bytes", "many"),
        ("nonsense", "--dir", "."),
    ],
)
def test_wrong_calls_exit_2_with_one_line(bench, tmp_path, words):
    assert bench(*words, cwd=tmp_path).status == 2
