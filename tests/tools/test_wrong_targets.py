"""Commands and calls that would change or remove something else than what was named."""

import math
import os

import cairn
import cairn.torch
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tool_programs import into_store, run_program, steps_of


@pytest.fixture
def store(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in (8, 64, 100):
            store.save(step, {"x": np.full(10, float(step))})
    return tmp_path / "store"


@pytest.mark.parametrize("words", [
    "delete {no} 1", "prune {no} --keep-last 1", "policy {no} --keep-last 1", "tag {no}@1 x",
    "untag {no} x", "compact {no}", "compression {no} --on", "rebuild {no}",
    "repair {no} --from {store}", "rename {no} a=b --into 2", "drop {no} a --into 2",
    "graft {no} --from 1 --into 2", "fork {no} --into 2", "fork {store}@9 --to {no}",
    "fork {store}@8,64 --to {no} --into 7", "merge {no}@1 {no}@2 --into 3", "push {no} {no}2",
    "push {store}@5 {no}", "push {store} {no}@1", "push {store}@8,,64 {no}",
    "mirror {store}@8 {no}",
])  # fmt: skip
def test_a_wrong_call_creates_no_store(store, tmp_path, words):
    run_program("kv-admin", *words.format(store=store, no=tmp_path / "no").split(), status=2)
    assert os.listdir(tmp_path) == ["store"]


def test_numbers_are_decimal(store, tmp_path):
    save_file({"x": np.zeros(3)}, tmp_path / "file.safetensors")
    assert run_program("kv-admin", "delete", store, "0100").status == 0
    assert steps_of(store) == [8, 64]
    imported = ("kv-admin", "import", store, tmp_path / "file.safetensors", "--step")
    for number in ("-1", "18446744073709551616", "0x10", "1e3", "1_000", "+5", ""):
        refused = run_program(*imported, number, status=2)
        assert "is not a whole number from 0 to 2^64 - 1" in refused.err
    assert run_program("kv-admin", "policy", store, "--keep-last", "-1").status == 2
    assert run_program("kv-admin", "compact", store, "--max-dead", "nan").status == 2
    assert steps_of(store) == [8, 64]


@pytest.mark.parametrize("place", [".", "runs/store"])
def test_an_export_of_a_model_does_not_replace_a_store(store, tmp_path, place):
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    save_file({"x": np.zeros(3)}, model / "model.safetensors", {"format": "pt"})
    (model / "config.json").write_text("{}")
    models = tmp_path / "models"
    run_program("kv-admin", "import", models, "--step", 1, model, "--format", "hf", status=0)
    into_store(out / place, {"x": np.ones(3)})
    (out / "config.json").write_text("{}")
    words = "export", models, out, "--format", "hf", "--overwrite"
    refused = run_program("kv-admin", *words, status=2)
    assert "has a store of Cairn, and is not replaced" in refused.err
    assert steps_of(out / place) == [1]


def test_a_mirror_copies_from_no_other_store_with_the_address(tmp_path):
    into_store(tmp_path / "other", {"x": np.full(3, 666.0)}, first=2)
    with cairn.open(tmp_path / "a", mode="a") as store:
        store.save(1, {"x": np.ones(3)})
        os.rename(tmp_path / "a", tmp_path / "b")
        os.rename(tmp_path / "other", tmp_path / "a")
        store.save(2, {"x": np.full(3, 2.0)}, mirror=tmp_path / "mirror")
        with pytest.raises(cairn.Conflict, match="another store than the one"):
            store.wait_mirrored()
    assert steps_of(tmp_path / "mirror") == []
    assert cairn.open(tmp_path / "b").read(step=2)["x"][0] == 2.0


@pytest.mark.parametrize("change", ["delete", "save"])
def test_a_progress_function_that_changes_the_store_is_refused(tmp_path, change):
    with cairn.open(tmp_path / "store", mode="a") as store:
        store.save(1, {"x": 1})
        calls = {"delete": lambda: store.delete(1), "save": lambda: store.save(8, {"x": 1})}
        errors = []

        def follow(done, total):
            if not errors:
                with pytest.raises(cairn.Invalid, match="must not change the store") as caught:
                    calls[change]()
                errors.append(caught.value)

        store.save(7, {"x": torch.randn(1 << 20)}, progress=follow)
        assert errors
        assert store.steps() == [1, 7]


@pytest.mark.parametrize("change", ["close", "abandon"])
def test_a_function_that_follows_a_call_does_not_close_its_store(tmp_path, change):
    raised = []

    def follow(done, total):
        if not raised:
            with pytest.raises(cairn.Invalid, match="the store is in a call") as caught:
                getattr(store, change)()
            raised.append(caught.value)
            another.close()  # which is in no call

    with cairn.open(tmp_path / "store", mode="a") as store:
        another = cairn.open(tmp_path / "another", mode="a")
        store.save(1, {"x": torch.randn(1 << 20)}, progress=follow)
        assert raised and store.steps() == [1]
        raised.clear()
        store.fork(1, to=tmp_path / "other", progress=lambda *report: follow(0, 0))
        assert raised and steps_of(tmp_path / "other") == [1]


@pytest.mark.parametrize("sharded", [False, True])
def test_an_export_replaces_all_files_of_the_one_before(store, tmp_path, sharded):
    def export(step, *words):
        target = f"{store}@{step}", tmp_path / "out", *words
        run_program("kv-admin", "export", *target, "--overwrite", status=0)

    def exported():
        assert all(path.exists() for path in foreign)
        return {path.name for path in (tmp_path / "out").iterdir() if path not in foreign}

    into_store(store, {f"w{i}": np.full(100, 7.0) for i in range(4)}, first=7)
    foreign = [tmp_path / "out" / name for name in (
        "model-best-of-5.safetensors", "model.txt", "model-00001-of-00002.safetensors.bak",
        "other-00001-of-00002.safetensors")]  # fmt: skip
    (tmp_path / "out").mkdir()
    for path in foreign:
        path.write_text("")
    run_program("kv-admin", "export", f"{store}@7", foreign[-1], status=2)  # one that exists
    sizes = [["--shard-size", "1000"], []]
    export(7, *sizes[sharded])
    export(7, "w0", "w1", "--shard-size", "1000")
    export(7, "w2", "w3", *sizes[not sharded])
    index = "model.safetensors.index.json" if sharded else "model.safetensors"
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)] if sharded else []
    assert exported() == {index, *shards}
    run_program("kv-admin", "import", tmp_path / "imported", "--step", 1, tmp_path / "out" / index,
                status=0)
    assert set(cairn.open(tmp_path / "imported").read()) == {"w2", "w3"}
    if sharded:
        return
    update = f"{store}@7", tmp_path / "out/model.safetensors", "--since", "8"
    for words in (update, (f"{store}@7", tmp_path / "out", "--rename", "w=v")):
        export(7, "w2", "w3", "--shard-size", "1000")
        run_program("kv-admin", "export", *words, "--overwrite", status=0)
        assert exported() == {"model.safetensors"}


@pytest.mark.parametrize("words", [[], ["--shard-size", "1000"], ["--since", "64"],
                                   ["--rename", "x=y"]])
def test_an_export_does_not_remove_what_it_wrote(store, tmp_path, words):
    into_store(store, {f"w{i}": np.full(100, 7.0) for i in range(4)}, first=7)
    step = 100 if "--since" in words else 7
    (tmp_path / "out").mkdir()
    files = None
    for out in ("out/file.safetensors", "out//file.safetensors", "out/./file.safetensors",
                "out/../out///file.safetensors"):  # fmt: skip
        target = f"{store}@{step}", f"{tmp_path}/{out}", *words
        run_program("kv-admin", "export", *target, "--overwrite", status=0)
        files = files or sorted(os.listdir(tmp_path / "out"))
        assert files and sorted(os.listdir(tmp_path / "out")) == files


@pytest.mark.parametrize("words", ["report {store} -o {pipe}", "export {store} {pipe} --overwrite",
                                   "export {store} {pipe} --overwrite --format torch"])
def test_what_is_not_a_file_is_not_replaced(store, tmp_path, words):
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    program = "kv-dump" if words.startswith("report") else "kv-admin"
    words = words.format(store=store, pipe=pipe).split()
    assert "not a regular file" in run_program(program, *words, status=2).err
    assert pipe.is_fifo() and sorted(os.listdir(tmp_path)) == ["pipe.safetensors", "store"]


def test_a_folder_may_have_a_step_in_its_name(store, tmp_path):
    folder = tmp_path / "user@host.com" / "runs@8"
    folder.mkdir(parents=True)
    (tmp_path / "user").mkdir()
    run_program("kv-admin", "push", f"{store}@8", folder / "copy", status=0)
    assert steps_of(folder / "copy") == [8]
    run_program("kv-dump", "keys", f"{folder}/copy@8", status=0)


def test_a_metric_of_which_no_step_has_a_number_deletes_nothing(store):
    with cairn.open(store, mode="a") as opened:
        opened.save(101, {"x": np.zeros(3)}, metrics={"diverged": math.nan})
    for metric in ("loss:2", "loss:max:1", "diverged:2"):
        refused = run_program("kv-admin", "prune", store, "--keep-best", metric, status=2)
        assert "no step has a value of the metric" in refused.err
    for metric in ("loss:2", "diverged:2"):
        run_program("kv-admin", "policy", store, "--keep-best", metric, status=0)
        with cairn.open(store, mode="a") as opened:
            opened.save(102, {"x": np.zeros(3)}, overwrite=True)
        assert steps_of(store) == [8, 64, 100, 101, 102]
    run_program("kv-admin", "policy", store, "--none", status=0)
    with cairn.open(store, mode="a") as opened:
        with cairn.torch.Saver(opened, every=1, keep_best=["loss:1"]) as saver:
            saver.save(103, {"x": torch.zeros(3)}, metrics={"diverged": math.nan})
            assert len(opened.steps()) == 6
            saver.save(104, {"x": torch.zeros(3)}, metrics={"loss": 1.0})
    assert steps_of(store) == [104]
