"""`kv-dump report`: the document, and the file that it writes."""

import os
import re

import numpy as np

import cairn
from tool_programs import into_store, run_program

MAX_PAGE_BYTES = 5 << 20


def document(store, *words):
    return run_program("kv-dump", "report", store, "--json", *words, status=0).json()


def paths(report):
    """The modules of a report by their path."""
    modules = report["modules"]
    found = {}
    for module in modules:
        names, at = [], module
        while at is not modules[0]:
            names.insert(0, at["name"])
            at = modules[at["parent"]]
        found[".".join(names)] = module
    return found


def test_the_facts_of_a_run_are_sentences(report_run):
    words = "report", report_run, "-o", report_run.parent / "report.html"
    finished = run_program("kv-dump", *words, status=0)

    assert "NaN began at step 1830 in 2 tensors of model.layers.6.mlp" in finished.out
    assert "replay.buffer grows from 1.00 KiB at step 300 to 270 KiB at step 2990" in finished.out
    assert re.search(r"have not changed since step 290, .*: model.layers.0 to 3, model.wte\.",
                     finished.out)  # fmt: skip
    assert "No damage was found." in finished.out


def test_the_document_agrees_with_the_other_verbs(report_run, dump):
    report = document(report_run)

    steps = dump("steps", report_run, "--json").json()["steps"]
    assert report["timeline"]["last"] == [step["step"] for step in steps]
    assert report["timeline"]["written"] == [step["written_bytes"] for step in steps]
    assert report["metrics"][0]["name"] in ("loss", "lr")
    assert {tag["tag"]: tag["step"] for tag in report["tags"]} == {"pretrained": 290, "best": 1500}
    spaces = dump("space", report_run, "--depth", "3", "--json").json()["space"]
    found = paths(report)
    for space in spaces:
        assert found[space["prefix"]]["bytes"] == space["logical_bytes"], space
        assert found[space["prefix"]]["stored"] == space["stored_bytes"], space
    exact = dump("space", report_run, "--segments", "--json").json()
    assert report["space"]["live"] == exact["live_bytes"]
    assert report["space"]["shared"] == exact["shared_bytes"]


def findings(store, topic="nan"):
    return [found for found in document(store)["findings"] if found["topic"] == topic]


def test_statistics_of_unchanged_chunks_that_arrive_later_are_examined(tmp_path):
    w, b = np.float32([1, np.nan]), np.zeros(3, np.float32)
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step, state in enumerate(({"b": b}, {"b": b, "w": w}, {"b": b, "w": w}), 1):
            store.save(step, state, tuning=cairn.SaveTuning(statistics=step != 2))
    present, unknown = findings(tmp_path / "store")
    assert present["level"] == "bad"
    assert present["title"] == "NaN is present at step 3 in w (1 value)."
    assert "may have begun earlier" in present["text"]
    assert "not known whether there are further" in unknown["title"]

    run_program("kv-admin", "statistics", f"{tmp_path / 'store'}@{{1..3}}", status=0)
    (exact,) = findings(tmp_path / "store")
    assert exact["title"] == "NaN began at step 2 in w (1 value)."


def test_a_tensor_of_which_a_part_has_statistics_is_not_denied_nan(tmp_path):
    w = np.zeros(4096, np.float32)
    w[0] = np.nan
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in (1, 2):
            w[-1] = step
            store.save(
                step, {"w": w}, tuning=cairn.SaveTuning(statistics=step == 1, chunk_bytes=8192)
            )
    present, unknown = findings(tmp_path / "store")
    assert present["title"].startswith("NaN is present at step 1")
    assert "At the last step, 1 of" in present["text"]
    assert unknown["text"].startswith("1 of 2 steps that were examined has tensors")


def test_what_is_not_known_is_stated(tmp_path):
    state = {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in (1, 2):
            store.save(step, state, tuning=cairn.SaveTuning(statistics=step == 1))
            state["b"] += 1
    (unknown,) = findings(tmp_path / "store")
    assert unknown["level"] == "info"
    assert unknown["title"] == "It is not known whether there are NaN or infinities."
    assert "1 of 2 steps that were examined has tensors without" in unknown["text"]
    assert "the last one 1." in unknown["text"]


def test_payload_is_not_read(report_run):
    before = document(report_run)
    segments = list((report_run / "segments").iterdir())
    contents = [(path, path.read_bytes()) for path in segments]
    try:
        for path, content in contents:
            os.truncate(path, 0)
            os.truncate(path, len(content))
        after = document(report_run)
    finally:
        for path, content in contents:
            path.write_bytes(content)
    assert {**after, "generated": ""} == {**before, "generated": ""}


def test_a_missing_segment_is_a_problem(tmp_path):
    store = into_store(tmp_path / "store", {"a": np.ones(100)})
    next((store / "segments").iterdir()).unlink()

    report = document(store)

    assert report["problem_count"] == 1 and "missing" in report["problems"][0]
    assert report["findings"][0]["topic"] == "health" and report["findings"][0]["level"] == "bad"


def test_an_empty_store_has_a_report(tmp_path):
    store = into_store(tmp_path / "store")
    words = "report", store, "-o", tmp_path / "report.html"
    assert "no steps yet" in run_program("kv-dump", *words, status=0).out
    assert document(store)["modules"] == []


def test_large_stores_are_merged_to_five_mebibytes(memory_folder):
    """More modules, tensors and steps than a page shows, all of which change, with long names."""
    state = {f"<{i:04}{'&' * 40}>{'n' * 100}": {"a": {"x": np.float32([i])}, "b": np.float32([0])}
             for i in range(1100)}  # fmt: skip
    metrics = {f"m{i}": 1 / 3 for i in range(20)}
    with cairn.open(memory_folder / "large", mode="a") as store:
        for step in range(6):
            for tensors in state.values():
                tensors["a"]["x"] += 1
            store.save(step, state, tuning=cairn.SaveTuning(statistics=True), metrics=metrics)
        small = {"only": np.zeros(1, np.float32)}
        for step in range(6, 350):
            small["only"] += 1
            store.save(step, small, tuning=cairn.SaveTuning(statistics=True), metrics=metrics)
    page = memory_folder / "large.html"

    run_program("kv-dump", "report", memory_folder / "large", "-o", page, status=0)

    assert page.stat().st_size <= MAX_PAGE_BYTES
    report = document(memory_folder / "large")
    assert len(report["columns"]["last"]) == 320 and len(report["metrics"]) == 16
    assert len(report["modules"]) <= 1000
    assert any("350 examined steps in 320 columns" in note for note in report["notes"])


def test_errors_name_what_to_do(report_run, tmp_path):
    assert "-o report.html" in run_program("kv-dump", "report", report_run, status=2).err
    words = "report", f"{report_run}@290", "--json"
    assert "without a step" in run_program("kv-dump", *words, status=2).err
    kept = tmp_path / "report.html"
    kept.mkdir()
    assert run_program("kv-dump", "report", report_run, "-o", kept).status == 2
    assert list(tmp_path.iterdir()) == [kept]
