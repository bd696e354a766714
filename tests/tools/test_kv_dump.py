"""kv-dump on healthy stores: numbers are exact, and exit statuses are the documented ones."""

import math
import os
import re
import subprocess

import numpy as np
import pytest
import torch
from cairn_testing import run_on_terminal
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tool_programs import BIN_DIR, import_model, into_store, small_model

import cairn

MODEL_BYTES = sum(t.numel() * t.element_size() for t in small_model().values())


def test_overview_counts_steps_and_bytes(dump, two_steps):
    view = dump(two_steps, "--json").json()
    assert view["steps"] == 2
    assert (view["first_step"], view["last_step"]) == (100, 200)
    assert view["latest"]["tensors"] == 7
    assert view["latest"]["logical_bytes"] == MODEL_BYTES - 3 + 16
    assert view["logical_bytes"] == 2 * MODEL_BYTES - 3 + 16
    assert view["payload_bytes"] == MODEL_BYTES + 100 * 64 * 4 + 16
    assert view["notes"] == []
    dtypes = view["latest"]["dtypes"]
    assert dtypes["bfloat16"] == {"tensors": 1, "elements": 1600, "bytes": 3200}
    on_disk = sum(p.stat().st_size for p in two_steps.rglob("*") if p.is_file())
    assert view["file_bytes"] == on_disk
    segments = sum(p.stat().st_size for p in (two_steps / "segments").iterdir())
    assert (view["segment_file_bytes"], view["unused_segment_bytes"]) == (segments, 0)


def test_overview_counts_the_segments_of_deleted_steps(dump, admin, tmp_path):
    import_model(admin, tmp_path, tmp_path / "s", 1, small_model())
    (segment,) = (tmp_path / "s" / "segments").iterdir()
    assert admin("delete", tmp_path / "s", 1).status == 0
    view = dump(tmp_path / "s", "--json").json()
    assert (view["segments"], view["unused_segment_bytes"]) == (0, segment.stat().st_size)
    assert "of deleted or unfinished steps" in dump(tmp_path / "s").out


@pytest.fixture
def five_steps(tmp_path):
    """Steps 1 to 5 of a few tensors and values that change in some of them."""
    path = tmp_path / "history"
    weight, frozen = torch.zeros(5, 1 << 20), torch.ones(3)
    state = {"weight": weight, "tied": weight, "frozen": frozen, "lr": 0.1}
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
        weight[3, 7] = 1
        store.save(2, state)
        store.save(3, {**state, "late": frozen, "lr": 0.05})
        weight[1:4] += 1
        store.save(4, {**state, "frozen": torch.ones(3, dtype=torch.float64)})
        store.save(5, {"weight": weight[:2], "lr": 0.1})
    return path


def history(dump, store, fqn):
    versions = dump("history", store, fqn, "--json").json()["versions"]
    return [(row["step"], row["change"], row["changed_bytes"]) for row in versions]


def test_history_lists_the_steps_at_which_a_key_changed(dump, five_steps):
    chunk = 4 << 20
    changes = [(2, "changed", chunk), (4, "changed", 3 * chunk), (5, "changed", 2 * chunk)]
    assert history(dump, five_steps, "weight") == [(1, "added", 5 * chunk), *changes]
    assert history(dump, five_steps, "late") == [(3, "added", 12), (4, "removed", 12)]
    lines = dump("history", five_steps, "lr").out.splitlines()
    assert lines[0].split() == ["STEP", "SAVED", "CHANGE", "BYTES", "OF", "DETAIL"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "3", "4"]
    assert "0.1 -> 0.05" in lines[2]
    assert "dtype float32 -> float64" in dump("history", five_steps, "frozen").out


def test_space_adds_up_the_parts_of_a_state(dump, tmp_path):
    weight = torch.randint(-9, 9, (512, 1024), dtype=torch.int16)  # 1 MiB
    state = {
        "model": {"a": {"w": weight, "tied": weight}, "b": {"w": torch.ones(1024)}},
        "model-2": torch.zeros(16),
        "optimizer": {"w": torch.zeros(2048)},
        "step": 1,
    }
    path = tmp_path / "s"
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
        weight.view(-1)[::100] += 1
        written = store.save(2, state, tuning=cairn.SaveTuning(deltas=True)).written_bytes
    rows = dump("space", path, "--depth", 1, "--json").json()["space"]
    columns = ("prefix", "tensors", "chunks", "delta_chunks", "logical_bytes", "stored_bytes",
               "new_bytes")  # fmt: skip
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("model", 2, 2, 1, (1 << 20) + 4096, (1 << 20) + 4096 + written, written),
        ("optimizer", 1, 1, 0, 8192, 8192, 0),
        ("model-2", 1, 1, 0, 64, 64, 0),
    ]
    prefixes = [row["prefix"] for row in dump("space", path, "model", "--json").json()["space"]]
    assert prefixes == ["model.a", "model.b"]
    every = dump("space", path, "--depth", 0).out.splitlines()
    assert [line.split()[0] for line in every] == [
        "KEYS", "model.a.tied", "optimizer.w", "model.b.w", "model-2", "(all)",
    ]  # fmt: skip
    assert "No tensor of step 2 matches" in dump("space", path, "nothing").out


def test_overview_for_people_names_the_next_steps(dump, two_steps):
    text = dump(two_steps).out
    assert f"kv-dump verify {two_steps}" in text
    assert "2, from 100 to 200" in text
    assert "\033" not in text


def test_store_called_like_a_verb_is_reached_by_its_path(dump, admin, tmp_path):
    import_model(admin, tmp_path, tmp_path / "steps", 1, small_model())
    assert dump("./steps", "--json", cwd=tmp_path).json()["steps"] == 1


def test_steps_have_times_and_bases(dump, two_steps):
    first, second = dump("steps", two_steps, "--json").json()["steps"]
    assert first["step"] == 100 and second["step"] == 200
    assert second["base_step"] == 100
    assert second["written_bytes"] == 100 * 64 * 4 + 16
    assert second["chunks_reused"] == 4
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", first["created"])


def test_keys_are_exact(dump, two_steps):
    rows = dump("keys", f"{two_steps}@100", "--json").json()["keys"]
    expected = {
        name: (str(t.dtype).removeprefix("torch."), list(t.shape), t.numel() * t.element_size())
        for name, t in small_model().items()
    }
    tensors = {
        r["fqn"]: (r["dtype"], r["shape"], r["bytes"]) for r in rows if r["kind"] == "tensor"
    }
    assert tensors == expected
    assert [r["fqn"] for r in rows] == sorted(r["fqn"] for r in rows)


def keys_of(dump, store, *patterns):
    return [row["fqn"] for row in dump("keys", store, *patterns, "--json").json()["keys"]]


def test_patterns_take_elements_not_letters(dump, two_steps):
    assert keys_of(dump, two_steps, "model.layers.1") == ["model.layers.1.w"]
    some = keys_of(dump, two_steps, "model.**", "!model.layers")
    assert some == ["model.ids", "model.new", "model.wte.weight"]


def test_a_pattern_may_be_a_set_alone(dump, tmp_path):
    into_store(tmp_path / "s", {name: torch.ones(1) for name in ("a", "b", "c", "ab")})
    assert keys_of(dump, tmp_path / "s", "[ab]", "[c]") == ["a", "b", "c"]


def test_control_characters_in_names_are_escaped_wherever_they_are(dump, admin, tmp_path):
    names = {"k" * i + char + "k" * (17 - i) for i in range(18) for char in "\x1f\x7f"}
    names.add(hostile := "evil\x1b[31m\nname\u202e\\")
    import_model(admin, tmp_path, tmp_path / "s", 1, {name: torch.zeros(1) for name in names})
    text = dump("keys", tmp_path / "s").out
    assert "evil\\x1b[31m\\nname\\u{202e}\\\\" in text and "\x1b" not in text
    shown = {row.split()[0] for row in text.splitlines() if row.startswith(("k", "\\"))}
    names.remove(hostile)
    assert shown == {name.replace("\x1f", "\\x1f").replace("\x7f", "\\x7f") for name in names}
    assert f"{hostile}\\" in keys_of(dump, tmp_path / "s")  # a backslash in a key is doubled


def test_chunks_state_where_their_bytes_are(dump, two_steps):
    rows = dump("chunks", f"{two_steps}@200", "--json").json()["chunks"]
    by_name = {r["fqn"]: r for r in rows}
    assert "optimizer.empty" not in by_name
    assert by_name["model.wte.weight"]["since_step"] == 200
    assert by_name["model.ids"]["since_step"] == 100
    row = by_name["model.ids"]
    with open(two_steps / "segments" / row["segment"], "rb") as segment:
        segment.seek(row["offset_bytes"])
        payload = segment.read(row["bytes"])
    assert payload == small_model()["model.ids"].numpy().tobytes()
    assert re.fullmatch("[0-9a-f]{32}", row["digest"])


def test_chunks_in_several_extents_state_where_each_is(dump, admin, tmp_path):
    store = tmp_path / "store"
    tensor = torch.arange(100_000, dtype=torch.int32)  # 400,000 bytes, 7 pages
    import_model(admin, tmp_path, store, 1, {"w": tensor})
    tensor[40_000] = -1  # in page 2
    import_model(admin, tmp_path, store, 2, {"w": tensor})
    (row,) = dump("chunks", f"{store}@2", "--json").json()["chunks"]
    assert row["bytes"] == 400_000 and "segment" not in row
    page = 64 * 1024
    assert [extent["bytes"] for extent in row["extents"]] == [2 * page, page, 400_000 - 3 * page]
    payload = b""
    for extent in row["extents"]:
        with open(store / "segments" / extent["segment"], "rb") as segment:
            segment.seek(extent["offset_bytes"])
            payload += segment.read(extent["bytes"])
    assert payload == tensor.numpy().tobytes()

    lines = dump("chunks", f"{store}@2").out.splitlines()
    assert "3 extents" in lines[1]
    for extent, line in zip(row["extents"], lines[2:], strict=True):
        assert extent["segment"] in line
    assert dump("verify", store).status == 0
    exported = tmp_path / "exported.safetensors"
    assert admin("export", f"{store}@2", exported).status == 0
    assert torch.equal(load_file(exported)["w"], tensor)


def test_segments_count_the_steps_that_use_them(dump, two_steps):
    first, second = dump("segments", two_steps, "--json").json()["segments"]
    assert (first["used_by_steps"], second["used_by_steps"]) == (2, 1)
    assert first["payload_bytes"] == MODEL_BYTES
    assert second["used_by_latest_bytes"] == second["payload_bytes"] == 100 * 64 * 4 + 16
    assert first["used_by_latest_bytes"] == MODEL_BYTES - 100 * 64 * 4 - 3
    assert (two_steps / "segments" / first["segment"]).stat().st_size == first["file_bytes"]


def test_segments_count_the_bytes_of_the_latest_step_and_not_of_the_highest(dump, tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step, count in ((10, 10), (20, 20)):
            store.save(step, {"w": torch.ones(count)})
        store.read(step=10)
        store.save(15, {"w": torch.ones(15)})
    segments = dump("segments", tmp_path / "store", "--json").json()["segments"]
    assert sum(one["used_by_latest_bytes"] for one in segments) == 15 * 4


def test_show_statistics_match_torch(dump, two_steps):
    for name, tensor in small_model().items():
        shown = dump("show", f"{two_steps}@100", name, "--json").json()
        values = tensor.double().flatten()
        statistics = shown["statistics"]
        assert statistics["count"] == tensor.numel()
        assert statistics["zeros"] == int((values == 0).sum())
        if tensor.numel() == 0 or tensor.dtype == torch.bool:
            continue
        assert statistics["min"] == values.min().item()
        assert statistics["max"] == values.max().item()
        assert math.isclose(statistics["mean"], values.mean().item(), rel_tol=1e-9, abs_tol=1e-12)
        std = values.std(unbiased=False).item()
        assert math.isclose(statistics["std"], std, rel_tol=1e-9, abs_tol=1e-12)


def test_show_prints_small_tensors_completely_and_only_the_edges_of_large_ones(dump, two_steps):
    shown = dump("show", f"{two_steps}@100", "model.ids", "--json").json()
    assert shown["values"] == list(range(-5, 20))
    assert shown["truncated"] is False
    large = dump("show", f"{two_steps}@100", "model.wte.weight", "--json").json()
    assert large["truncated"] is True and large["values"] is None
    text = dump("show", f"{two_steps}@100", "model.wte.weight").out
    weight = small_model()["model.wte.weight"]
    for row in (0, 1, 2, 97, 98, 99):
        for column in (0, 1, 2, 61, 62, 63):
            assert str(weight[row, column].numpy()) in text
    assert text.count("...") == 7
    everything = dump("show", f"{two_steps}@100", "model.wte.weight", "--json", "--all").json()
    assert everything["values"] == weight.tolist()


def python_slices(size):
    bound = st.one_of(st.none(), st.integers(-size - 2, size + 2))
    ranges = st.builds(slice, bound, bound)
    return st.one_of(ranges, st.integers(-size, size - 1))


def slice_text(part):
    if isinstance(part, int):
        return str(part)
    bounds = ["" if bound is None else str(bound) for bound in (part.start, part.stop)]
    return ":".join(bounds)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.tuples(python_slices(8), python_slices(3), python_slices(5)), count=st.integers(1, 3)
)
def test_slices_are_those_of_python(dump, two_steps, parts, count):
    parts = parts[:count]
    expected = small_model()["model.layers.10.w"].double().numpy()[parts]
    text = ",".join(slice_text(part) for part in parts)
    shown = dump("show", two_steps, "model.layers.10.w", "--slice", text, "--json").json()
    if expected.size == 0:
        assert shown["values"] == []
    else:
        assert np.array_equal(np.array(shown["values"]), expected)
    assert shown["statistics"]["count"] == expected.size


@pytest.mark.parametrize("text", ["a", "0,0,0,0", ":::", "1,,2"])
def test_bad_slices_are_refused_in_one_line(dump, two_steps, text):
    assert "slice" in dump("show", two_steps, "model.layers.10.w", "--slice", text, status=2).err


def test_show_knows_every_float(dump, tmp_path):
    halves = torch.arange(0, 65536, dtype=torch.int32).to(torch.uint16)
    bytes_ = torch.arange(0, 256, dtype=torch.int32).to(torch.uint8)
    tensors = {str(dtype): halves.clone().view(dtype) for dtype in (torch.float16, torch.bfloat16)}
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensors[str(dtype)] = bytes_.clone().view(dtype)
    into_store(tmp_path / "s", tensors)
    for name, tensor in tensors.items():
        shown = dump("show", tmp_path / "s", name, "--json", "--all").json()["values"]
        names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
        values = np.array([names.get(v, v) if isinstance(v, str) else v for v in shown])
        assert np.array_equal(values, tensor.double().numpy(), equal_nan=True), name


def test_diff_lists_changes_and_exits_1(dump, two_steps):
    finished = dump("diff", f"{two_steps}@100", f"{two_steps}@200", "--values", "--json", status=1)
    changes = {c["fqn"]: c for c in finished.json()["changes"]}
    assert {name: c["change"] for name, c in changes.items()} == {
        "model.wte.weight": "changed",
        "model.new": "added",
        "model.mask": "removed",
    }
    row = changes["model.wte.weight"]
    assert row["differing_elements"] == 1
    assert math.isclose(row["largest_absolute_difference"], 0.5, rel_tol=1e-6)
    assert finished.json()["unchanged_keys"] >= 5


def test_distances_of_large_integers_are_not_rounded_away(dump, tmp_path):
    low = torch.tensor([2**62, -(2**63), 5], dtype=torch.int64)
    high = torch.tensor([2**62 + 1, -(2**63), 5], dtype=torch.int64)
    nan = torch.tensor([1.0, float("nan")])
    into_store(tmp_path / "s", {"ids": low, "x": torch.ones(2)}, {"ids": high, "x": nan})
    finished = dump("diff", f"{tmp_path}/s@1", "@2", "--values", "--json")
    ids, x = finished.json()["changes"]
    assert (ids["differing_elements"], ids["largest_absolute_difference"]) == (1, 1.0)
    assert (x["differing_elements"], x["not_comparable_elements"]) == (1, 1)


def test_diff_of_equal_steps_exits_0(dump, two_steps):
    assert dump("diff", f"{two_steps}@100", "@100", "--json", status=0).json()["changes"] == []
    assert dump("diff", f"{two_steps}@100", "@200", "model.layers").status == 0


def test_verify_of_a_healthy_store_exits_0(dump, two_steps):
    finished = dump("verify", two_steps, "--json", status=0)
    assert finished.json()["ok"] is True
    assert finished.json()["bytes_read"] >= MODEL_BYTES
    assert dump("verify", f"{two_steps}@100").status == 0


def test_json_may_precede_the_verb(dump, two_steps):
    for words in [(two_steps,), ("overview", two_steps), ("show", two_steps, "model.ids")]:
        assert dump("--json", *words).json() == dump(*words, "--json").json()


def test_a_closed_pipe_is_not_an_error(two_steps):
    shell = f"'{BIN_DIR}/kv-dump' chunks '{two_steps}' | head -1"
    process = subprocess.run(["bash", "-c", shell], capture_output=True)
    assert process.stderr == b""
    assert process.stdout.startswith(b"FQN")


def test_color_and_width_only_on_a_terminal(dump, admin, tmp_path):
    name = "model." + "x" * 200 + ".weight"
    import_model(admin, tmp_path, tmp_path / "s", 1, {name: torch.ones(1)})
    words = [BIN_DIR / "kv-dump", "keys", tmp_path / "s"]
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    environment.pop("NO_COLOR", None)
    coloured, _ = run_on_terminal(words, stream="stdout", env=environment)
    assert "\033[1m" in coloured
    plain, _ = run_on_terminal(words, stream="stdout", env={**environment, "NO_COLOR": "1"})
    assert "\033" not in plain
    assert ".weight" in plain and name not in plain
    assert name in dump("keys", tmp_path / "s").out  # never cut in a pipe
    assert max(len(line) for line in plain.splitlines()) <= 80


def test_records_of_applications_are_listed_and_written(tmp_path, dump):
    data = bytes(range(128))
    with cairn.open(tmp_path / "store", "a") as store:
        store.save(1, {"a": 1}, tuning=cairn.SaveTuning(records={"x": data, "y": b""}))

    rows = dump("records", tmp_path / "store", "--json", status=0).json()["records"]

    assert rows == [{"name": "x", "bytes": 128}, {"name": "y", "bytes": 0}]
    assert dump("records", f"{tmp_path}/store@1", "x", status=0).out.encode() == data
    assert "no record 'z'" in dump("records", tmp_path / "store", "z", status=2).err
