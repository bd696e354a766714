"""kv-bench measures what it reports, with sizes that are small enough for every machine."""

import json
import os
import shutil

import pytest

MIB = 1 << 20
COMMON = {"verb", "bytes", "seconds", "cpu_seconds", "peak_resident_bytes", "bytes_per_second"}


def rows(finished):
    assert finished.status == 0, finished.err
    return [json.loads(line) for line in finished.out.splitlines()]


def test_save_writes_all_bytes_and_leaves_nothing(bench, tmp_path):
    (row,) = rows(bench("save", "--dir", tmp_path, "--bytes", "24MiB", "--json"))
    assert COMMON <= row.keys()
    assert row["bytes"] == 24 * MIB
    assert row["payload_written_bytes"] == 24 * MIB
    assert row["seconds"] > 0 and row["cpu_seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_load_reads_all_bytes(bench, tmp_path):
    for row in rows(bench("load", "--dir", tmp_path, "--bytes", "24MiB", "--json", "--repeat", 2)):
        assert row["bytes"] == 24 * MIB
        assert row["bytes_read"] >= 24 * MIB
        assert row["cold"] is True
    assert list(tmp_path.iterdir()) == []


def bars(measured):
    """The bars of a run, by what they are about and what they are compared with."""
    return {(r["of"], r["to"]): r for r in measured if r["what"] == "bar"}


def test_incremental_save_of_nothing_new_writes_no_payload(bench, tmp_path):
    measured = rows(
        bench("incremental", "--dir", tmp_path, "--bytes", "24MiB", "--changed", "10", "--json")
    )
    same, limit, changed = measured[:3]
    assert same["payload_written_bytes"] == 0
    assert same["store_grown_bytes"] < MIB
    assert limit["what"] == "sum, 2 threads" and limit["bytes"] >= 24 * MIB
    assert 0 < changed["payload_written_bytes"] <= changed["changed_bytes"]
    assert changed["changed_keys"] > 0
    assert bars(measured)[("nothing changed", "sum, 2 threads")]["bar"] == 0.8


def test_incremental_saves_of_many_small_tensors(bench, tmp_path):
    same = rows(
        bench("incremental", "--dir", tmp_path, "--bytes", "4MiB", "--tensors", 1000, "--json")
    )[0]
    assert same["chunks"] == same["chunks_reused"] == 1000
    refused = bench("incremental", "--dir", tmp_path, "--bytes", "2KiB", "--tensors", 1000)
    assert refused.status == 2 and "too small for 1000 tensors" in refused.err


def test_open_measures_a_fresh_process_and_keeps_its_store(bench, tmp_path):
    words = ("open", "--dir", tmp_path, "--chunks", 1000, "--steps", 20, "--json")
    first = rows(bench(*words))
    kinds = ["cold open", "cold open, 20 steps", "cold table",
             "warm open", "warm open, 20 steps", "warm table"]  # fmt: skip
    assert [r["what"] for r in first[:6]] == kinds
    assert all(r["chunks"] == 1000 and r["fresh_process"] for r in first[:6] if "chunks" in r)
    assert all(r["seconds"] > 0 for r in first[:6])
    assert set(bars(first)) == {
        ("cold open", "6.00 ms"), ("cold open", "cold table"), ("cold open, 20 steps", "cold open"),
        ("warm open", "2.00 ms"), ("warm open", "warm table"), ("warm open, 20 steps", "warm open"),
    }  # fmt: skip
    stores = [tmp_path / name / "CAIRN" for name in ("open-1000", "open-1000-20")]
    made = [path.stat().st_mtime_ns for path in stores]
    rows(bench(*words))
    assert made == [path.stat().st_mtime_ns for path in stores]


def test_commit_is_compared_with_a_table_of_its_records(bench, tmp_path):
    measured = rows(bench("commit", "--dir", tmp_path, "--ranks", 8, "--chunks", 500, "--json"))
    commit, memory, limit, ratio = measured
    assert commit["what"] == "commit" and commit["chunks"] == 500
    assert memory["to"] == "256 MiB" and memory["figure"] > 0
    assert limit["what"] == "SstFileWriter" and limit["seconds"] > 0
    assert ratio["of"] == "commit" and ratio["bar"] == 1.3
    assert list(tmp_path.iterdir()) == []


def test_fio_runs_after_each_run_and_gives_a_ratio(bench, tmp_path):
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    finished = bench(
        "save", "--dir", tmp_path, "--bytes", "32MiB", "--fio", "--json", "--repeat", 2
    )
    if finished.status == 2 and "fio failed" in finished.err:
        pytest.skip("fio cannot use O_DIRECT here")
    measured = rows(finished)
    assert [r["what"] for r in measured[:4]] == ["save", "fio write"] * 2
    assert measured[-1]["what"] == "ratio of medians" and measured[-1]["ratio"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_bad_setting_in_the_environment_is_one_clear_error(bench, tmp_path):
    environment = {**os.environ, "CAIRN_IO_DEPTH": "many"}
    refused = bench("save", "--dir", tmp_path, "--bytes", "4MiB", env=environment)
    assert refused.status == 2
    assert "CAIRN_IO_DEPTH is 'many'; it must be an integer from 1 to 1024" in refused.err


def test_people_get_a_table(bench, tmp_path):
    text = bench("save", "--dir", tmp_path, "--bytes", "4MiB").out
    assert text.startswith("WHAT")
    assert "4.00 MiB" in text


@pytest.mark.parametrize(
    "words",
    [("save",), ("save", "--dir", "/nonexistent"), ("save", "--dir", ".", "--bytes", "many"),
     ("save", "--dir", ".", "--bytes", "10"), ("nonsense", "--dir", ".")],
)
def test_wrong_calls_exit_2_with_one_line(bench, tmp_path, words):
    assert bench(*words, cwd=tmp_path).status == 2
