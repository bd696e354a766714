"""kv-admin: imports and exports preserve every bit, and failures leave nothing behind."""

import json
import os
import subprocess

import cairn
import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tool_programs import (
    BIN_DIR,
    assert_equal,
    import_model,
    run_interop,
    run_program,
    small_model,
    steps_of,
)


def test_import_and_export_give_the_same_tensors(admin, tmp_path):
    import_model(admin, tmp_path, tmp_path / "s", 1, small_model())
    admin("export", tmp_path / "s", tmp_path / "out.safetensors", status=0)
    assert_equal(load_file(tmp_path / "out.safetensors"), small_model())
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers requires it


def test_export_in_shards_with_an_index_and_back(admin, tmp_path):
    import_model(admin, tmp_path, tmp_path / "s", 1, small_model())
    admin("export", f"{tmp_path}/s@1", tmp_path / "out", "--shard-size", "8KiB", status=0)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == small_model().keys()
    shards = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(shards) > 1
    merged = {}
    for shard in shards:
        merged |= load_file(shard)
    assert_equal(merged, small_model())

    index_path = tmp_path / "out" / "model.safetensors.index.json"
    assert admin("import", tmp_path / "t", "--step", 5, index_path).status == 0
    assert admin("export", tmp_path / "t", tmp_path / "again.safetensors").status == 0
    assert_equal(load_file(tmp_path / "again.safetensors"), small_model())
    # With the index and the shards, as a shell's * gives them, each file is read once.
    assert admin("import", tmp_path / "u", "--step", 5, index_path, *shards).status == 0


def test_export_takes_patterns(admin, tmp_path):
    import_model(admin, tmp_path, tmp_path / "s", 1, small_model())
    assert admin("export", tmp_path / "s", tmp_path / "o.safetensors", "model.layers.1").status == 0
    assert list(load_file(tmp_path / "o.safetensors")) == ["model.layers.1.w"]
    words = "export", tmp_path / "s", tmp_path / "p.safetensors", "absent"
    assert "no tensor matches" in admin(*words, status=2).err
    assert not (tmp_path / "p.safetensors").exists()


@pytest.mark.parametrize("suffix, load", [("safetensors", load_file), ("pt", torch.load)])
def test_export_replaces_nothing_unasked(admin, tmp_path, suffix, load):
    import_model(admin, tmp_path, tmp_path / "s", 1, {"a": torch.ones(2)})
    target = tmp_path / f"o.{suffix}"
    target.write_text("precious")
    assert "--overwrite" in admin("export", tmp_path / "s", target, status=2).err
    assert target.read_text() == "precious"
    assert admin("export", tmp_path / "s", target, "--overwrite").status == 0
    assert_equal(load(target), {"a": torch.ones(2)})


def test_import_below_a_prefix(admin, dump, tmp_path):
    import_model(admin, tmp_path, tmp_path / "s", 1, {"w": torch.ones(2)}, "--prefix", "model")
    assert [r["fqn"] for r in dump("keys", tmp_path / "s", "--json").json()["keys"]] == ["model.w"]


def test_a_step_is_replaced_only_when_asked(admin, dump, tmp_path):
    import_model(admin, tmp_path, tmp_path / "s", 1, {"w": torch.ones(2)})
    admin("import", tmp_path / "s", "--step", 1, tmp_path / "model-1.safetensors", status=2)
    import_model(admin, tmp_path, tmp_path / "s", 1, {"w": torch.zeros(2)}, "--overwrite")
    assert dump("show", tmp_path / "s", "w", "--json").json()["values"] == [0, 0]
    assert dump("verify", tmp_path / "s").status == 0


def test_base_is_the_named_step(admin, dump, tmp_path):
    store = tmp_path / "s"
    for step in (1, 2):
        import_model(admin, tmp_path, store, step, {"w": torch.full((4,), float(step))})
    import_model(admin, tmp_path, store, 3, {"w": torch.full((4,), 1.0)}, "--base", 1)
    latest = dump("steps", store, "--json").json()["steps"][-1]
    assert (latest["base_step"], latest["written_bytes"]) == (1, 0)


def segment_names(store):
    return sorted(path.name for path in (store / "segments").iterdir())


def test_delete_keeps_what_other_steps_use_and_frees_the_rest(admin, dump, tmp_path):
    store = tmp_path / "s"
    for step in (1, 2, 3, 4):
        state = {"same": torch.ones(9), "own": torch.full((3,), float(step))}
        import_model(admin, tmp_path, store, step, state)
    before = segment_names(store)
    dry = admin("delete", store, 1, 2, "--dry-run", status=0)
    assert dry.out.startswith("would delete 2 steps")
    later = admin("delete", store, 1, 2, status=0)
    assert later.out.startswith("deleted 2 steps; 0 B free now, ")
    assert later.out.endswith("at the next change after the grace period of 60.0 s\n")
    assert segment_names(store) == before

    with cairn.open(store):
        known = admin("delete", store, 3, "--now", status=2).err
    assert f"process {os.getpid()} has the store open" in known and len(segment_names(store)) == 4

    at_once = admin("delete", store, 3, "--now", status=0)

    freed, checked = at_once.out.splitlines()
    assert freed.startswith("deleted 1 step; ") and freed.endswith(" free now")
    whose = "host" if os.geteuid() == 0 else "user"
    assert checked.startswith(f"checked: no other process of this {whose} has the store open; not")
    assert len(before) == 4 and len(segment_names(store)) == 2  # the first has "same"
    assert steps_of(store) == [4]
    assert dump("show", store, "same", "--json").json()["values"] == [1] * 9
    assert dump("verify", store).status == 0
    assert "77" in admin("delete", store, 4, 77, status=2).err
    assert steps_of(store) == [4]


def store_where_a_step_waits(path, size=100_000):
    with cairn.open(path, mode="a") as opened:
        for step in range(1, 5):
            opened.save(step, {"a": numpy.full(size, step), "b": numpy.full(size, -step)})
        opened.edit(4, into=5, drop="b")
        opened.delete(1, 4)
    return path


def files_of(store):
    return {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("verb", ["delete {s} 2", "prune {s} --keep-last 1", "compact {s}"])
def test_a_dry_run_changes_nothing_and_now_frees_all_that_waits(admin, tmp_path, verb):
    store = store_where_a_step_waits(tmp_path / "s")
    before = files_of(store)
    words = verb.format(s=store).split()
    with cairn.open(store, mode="a"):  # also in a store that a job has open
        before_dry_run = files_of(store)
        admin(*words, "--dry-run", status=0)
        assert files_of(store) == before_dry_run
    for path in files_of(store).keys() - before.keys():
        assert path.parent.name in ("roots", "leases")
    before = files_of(store)
    would = admin(*words, "--dry-run", "--now", status=0).out
    assert "would" in would and files_of(store) == before
    assert "60.0 s" not in admin(*words, "--now", status=0).out
    again = admin("delete", store, 5, "--dry-run", status=0).out
    assert "0 B free now" in again
    with cairn.open(store) as opened:
        assert (opened.read(step=5)["a"] == 4).all()


@pytest.mark.parametrize("words", ["delete {s} 77", "delete {s} 2 77", "prune {s}"])
def test_now_frees_nothing_if_the_command_is_refused(admin, tmp_path, words):
    store = store_where_a_step_waits(tmp_path / "s")
    before = segment_names(store)
    assert len(before) == 4
    admin(*words.format(s=store).split(), "--now", status=2)
    assert segment_names(store) == before and steps_of(store) == [2, 3, 5]


def test_now_keeps_the_files_for_a_reader_that_opens_the_store_meanwhile(tmp_path):
    for attempt in range(8):  # of the program, each of which takes twice as long: 0.2 s to 25 s
        store = store_where_a_step_waits(tmp_path / f"s{attempt}", 200_000)
        words = [BIN_DIR / "kv-admin", "compact", store, "--now", "--max-rate", 10**6 >> attempt]
        process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True)
        while not any((store / "leases").iterdir()) and process.poll() is None:
            pass
        roots = len(list((store / "roots").iterdir()))
        with cairn.open(store) as reader:
            is_in_time = len(list((store / "roots").iterdir())) == roots
            out = process.communicate()[0]
            assert process.returncode == 0
            if is_in_time:
                assert f"process {os.getpid()} has opened the store in the meantime" in out
                assert len(segment_names(store)) == 5
                assert (reader.read(step=2)["a"] == 2).all()
                return
    pytest.fail("no reader was in time")


REFUSED = {
    "a NUL in a key": ({"a\0b": torch.ones(2)}, []),
    "a bad tag": ({"a": torch.ones(2)}, ["--tag", "no tag"]),
    "a base in a store that does not exist": ({"a": torch.ones(2)}, ["--base", 7]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_import_leaves_no_store(admin, tmp_path, kind):
    state, options = REFUSED[kind]
    torch.save(state, tmp_path / "state.pt")
    words = "import", tmp_path / "s", "--step", 1, tmp_path / "state.pt", *options
    refused = run_interop(*words, status=2)
    assert not (tmp_path / "s").exists(), refused.err
    # The same call is refused in a store that exists, and does not change its steps.
    import_model(admin, tmp_path, tmp_path / "s", 0, small_model())
    run_interop(*words, status=2)
    assert steps_of(tmp_path / "s") == [0]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"weight_map": 3}',
        '{"weight_map": {"w": "../model-1.safetensors"}}',
        '{"weight_map": {"w": "/etc/passwd"}}',
        '{"weight_map": {"w": 3}}',
        '{"weight_map": {"absent": "model-1.safetensors"}}',
        '{"weight_map": {"w": "missing.safetensors"}}',
    ],
)
def test_hostile_indexes_are_refused(admin, tmp_path, content):
    save_file({"w": torch.ones(2)}, tmp_path / "model-1.safetensors")
    (tmp_path / "x.index.json").write_text(content)
    admin("import", tmp_path / "s", "--step", 1, tmp_path / "x.index.json", status=2)
    assert not (tmp_path / "s").exists()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
WRONG_FILES = {
    "a Git LFS pointer": LFS,
    "an HTML page": b"\n<!DOCTYPE HTML>\n<html><title>404</title></html>",
    "an XML document": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "a text": b'{"error": "Repository not found"}',
    "begins with zeros": bytes(4096),
}


@pytest.mark.parametrize("name", ["x.safetensors", "x.bin", "x.pt", "x.index.json", "x.metadata"])
@pytest.mark.parametrize("what", WRONG_FILES)
def test_an_import_names_what_was_fetched_instead_of_the_file(admin, tmp_path, what, name):
    if (what, name) == ("a text", "x.index.json"):
        pytest.skip("an index is JSON")
    (tmp_path / name).write_bytes(WRONG_FILES[what])
    error = admin("import", tmp_path / "s", "--step", 1, tmp_path / name, status=2).err
    assert what in error and ("get the file again" in error or "git lfs pull" in error)
    assert not (tmp_path / "s").exists()


def test_an_import_names_bytes_after_the_last_tensor(admin, tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(2)}, path)
    path.write_bytes(path.read_bytes() + bytes(16))
    error = admin("import", tmp_path / "s", "--step", 1, path, status=2).err
    assert "16 bytes follow the last tensor" in error


def test_an_import_of_nothing_is_an_error_and_leaves_no_store(admin, tmp_path):
    save_file({}, tmp_path / "x.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    torch.save({"a": {}, "b": []}, tmp_path / "x.pt")
    (tmp_path / "x.index.json").write_text('{"metadata": {}, "weight_map": {}}')
    (tmp_path / "rules.json").write_text('[{"drop": "."}]')
    all_dropped = tmp_path / "w.safetensors", "--rules", tmp_path / "rules.json"
    for words in ["x.safetensors"], ["x.pt"], ["x.index.json"], all_dropped:
        words = (tmp_path / words[0], *words[1:])
        error = admin("import", tmp_path / "s", "--step", 1, *words, status=2).err
        assert "there is nothing to import" in error
    assert not (tmp_path / "s").exists()


def test_one_name_in_two_files_is_refused(admin, tmp_path):
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    files = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    assert "w" in admin("import", tmp_path / "s", "--step", 1, *files, status=2).err


VERBS = {
    "kv-admin": "import export delete tag untag policy prune compact compression rebuild repair "
                "rename drop graft fork merge push pull mirror check-storage",
    "kv-dump": "overview steps keys chunks show diff history segments space verify report serve",
}


@pytest.mark.parametrize("program", VERBS)
def test_the_help_has_each_verb_with_examples(program):
    text = run_program(program, "--help").out
    for verb in VERBS[program].split():
        assert f"  {verb} " in text
        assert "Examples:" in run_program(program, verb, "--help").out


def test_rebuild_restores_a_store_whose_roots_do_not_open(admin, dump, tmp_path):
    store = tmp_path / "s"
    import_model(admin, tmp_path, store, 1, small_model())
    import_model(admin, tmp_path, store, 2, small_model())
    for root in (store / "roots").iterdir():
        root.write_bytes(b"")
    assert "kv-admin rebuild" in dump("keys", store, status=2).err

    assert "2 steps" in admin("rebuild", store, status=0).out

    assert dump("verify", store).status == 0
    assert admin("export", f"{store}@1", tmp_path / "o.safetensors").status == 0
    assert_equal(load_file(tmp_path / "o.safetensors"), small_model())


def test_rebuild_names_the_steps_that_cannot_be_restored(admin, dump, tmp_path):
    store = tmp_path / "s"
    import_model(admin, tmp_path, store, 1, small_model())
    assert "nothing to rebuild" in admin("rebuild", store).err
    min((store / "roots").iterdir()).write_bytes(b"")  # the newest
    (table,) = (store / "tables").iterdir()
    table.write_bytes(table.read_bytes()[:-1])
    segments = segment_names(store)

    finished = admin("rebuild", store, status=2)

    assert table.name in finished.out and "could not be recovered" in finished.err
    assert segment_names(store) == segments
