"""Stores and files that are made to harm their readers: small files that state enormous sizes.

Every command ends at once, with one error or a short answer.
"""

import os
import shutil

import cairn
import pytest
import torch

from tool_programs import into_store, small_model


@pytest.fixture(scope="module")
def repeating(tmp_path_factory):
    """A store of a few hundred bytes with tensors of terabytes."""
    path = tmp_path_factory.mktemp("repeating") / "store"
    alone = {"alone": torch.tensor(2.5).expand(1 << 40), "small": torch.ones(3)}
    two = [torch.arange(100.0), torch.arange(100.0) + 1]
    return into_store(path, alone, *(
        {"shared": shared, "part": shared[:2].expand(1 << 40, 2), "small": torch.ones(3)}
        for shared in two
    ))  # fmt: skip


def test_a_tensor_that_repeats_its_elements_is_not_written_out(repeating):
    assert sum(file.stat().st_size for file in repeating.rglob("*") if file.is_file()) < 100_000
    with cairn.open(repeating) as store:
        got = store.read(step=1)
        assert got["alone"].shape == (1 << 40,) and got["alone"].stride() == (0,)
        assert got["alone"][12345] == 2.5 and got["alone"].untyped_storage().nbytes() == 4
        got = store.read(step=2)
        assert got["part"].shape == (1 << 40, 2) and got["part"][7].tolist() == [0, 1]
        assert got["part"].data_ptr() == got["shared"].data_ptr()


def test_memory_that_does_not_exist_is_an_error_of_cairn(repeating):
    with cairn.open(repeating) as store:
        with pytest.raises(cairn.Unavailable, match="not enough memory for 'part'") as raised:
            store.read("part", step=2)  # without the tensor whose memory it shares
        assert raised.value.key == "part" and raised.value.step == 2
        assert torch.equal(store.read("small", step=2)["small"], torch.ones(3))


def test_show_and_diff_do_not_read_what_is_repeated(repeating, dump):
    shown = dump("show", f"{repeating}@1", "alone", status=0)
    assert "no statistics" in shown.out and "2.5" in shown.out
    assert dump("show", f"{repeating}@1", "alone", "--json").json()["statistics"] is None
    part = dump("show", f"{repeating}@2", "part", "--slice", "0:10,1", "--json").json()
    assert part["values"] == [1] * 10
    changes = {change["fqn"]: change for change in
               dump("diff", f"{repeating}@2", f"{repeating}@3", "--json").json()["changes"]}
    assert changes["part"]["changed_bytes"] == (1 << 40) * 8
    words = "diff", f"{repeating}@2", f"{repeating}@3", "--values"
    assert "(key part)" in dump(*words, status=2).err
    assert dump(*words, "!part").status == 1
    assert dump("verify", repeating).status == 0


@pytest.mark.parametrize("step, key", [(1, "alone"), (2, "part")])
def test_exports_refuse_what_is_repeated(repeating, admin, tmp_path, step, key):
    out = tmp_path / "out.safetensors"
    error = admin("export", f"{repeating}@{step}", out, status=2).err
    assert "repeats elements" in error and key in error
    assert list(tmp_path.iterdir()) == []
    assert admin("export", f"{repeating}@{step}", out, f"!{key}").status == 0
    # A file of torch.save has the storage once, and the shape.
    assert admin("export", f"{repeating}@{step}", tmp_path / "out.pt").status == 0
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert loaded[key].numel() >= 1 << 40


def test_modes_are_those_that_the_umask_leaves(tmp_path, admin, dump):
    mask = 0o026
    before = os.umask(mask)
    try:
        with cairn.open(tmp_path / "store", mode="a") as store:
            store.save(1, small_model(), mirror=tmp_path / "mirror")
            store.wait_mirrored(timeout=1200)
            modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
        for out in ("one.safetensors", "folder/", "one.pt", "one.dcp"):
            admin("export", tmp_path / "store", tmp_path / out, status=0)
        dump("report", tmp_path / "store", "-o", tmp_path / "report.html", status=0)
    finally:
        os.umask(before)
    modes |= {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    for path, mode in modes.items():
        assert mode == (0o777 if path.is_dir() else 0o666) & ~mask, path


def test_links_to_other_files_show_nothing_of_them(two_steps, dump, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"password=hunter2 " * 10_000)
    for original in sorted(path for path in two_steps.rglob("*") if path.is_file()):
        store = tmp_path / "store"
        shutil.copytree(two_steps, store)
        name = original.relative_to(two_steps)
        (store / name).unlink()
        (store / name).symlink_to(secret)
        for words in (["verify", store], ["keys", store], ["show", store, "model.wte.weight"]):
            finished = dump(*words)
            assert "hunter2" not in finished.out + finished.err, (name, words)
        shutil.rmtree(store)
