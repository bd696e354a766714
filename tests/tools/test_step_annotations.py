"""Records of applications and the descent of steps through everything that rewrites a store, and
what `kv-dump` shows of them."""

import shutil

import torch
from cairn_testing import segment_files

import cairn
from cairn import SaveTuning


def annotations(path):
    """Of each step: its records, its parent and its run."""
    with cairn.open(path) as store:
        infos = {step: store.step_info(step) for step in store.steps()}
        return {
            step: (
                {name: store.record(step, name) for name in store.records(step)},
                info.parent and (info.parent.step, info.parent.attempt),
                info.run,
            )
            for step, info in infos.items()
        }


def long_history(path):
    """24 steps, each compared with the one before, whose records differ. Returns `annotations`."""
    weights = torch.arange(50_000.0)
    with cairn.open(path, mode="a", grace=0) as store:
        for step in range(1, 25):
            weights[step] += 1
            records = {f"name {step % 3}": bytes([step]), "all": bytes(step * 1000)}
            tuning = SaveTuning(records=records if step % 4 else None, deltas=True)
            store.save(step, {"w": weights, "step": step}, tuning=tuning)
    return annotations(path)


def test_copies_compactions_and_rebuilds_keep_them(tmp_path, admin):
    path, copy = tmp_path / "store", tmp_path / "copy"
    expected = long_history(path)
    assert sorted(expected[1][0]) == ["all", "name 1"] and expected[4][0] == {}
    assert all(expected[step][1][0] == step - 1 for step in range(2, 25))

    with cairn.open(path) as source, cairn.open(copy, mode="a") as target:
        for steps in ([24], [3, 12], None):
            cairn.copy_steps(source, target, steps)
    assert annotations(copy) == expected

    with cairn.open(path, mode="a", grace=0) as store:
        store.delete(*range(2, 24, 2))
        store.compact(max_dead=0.0)
        store.compact(max_dead=0.0, compress=True)
    remaining = {step: one for step, one in expected.items() if step % 2 or step == 24}
    assert annotations(path) == remaining

    shutil.rmtree(path / "roots")
    admin("rebuild", path, status=0)
    rebuilt = annotations(path)
    assert {step: rebuilt[step] for step in remaining} == remaining

    with cairn.open(copy, mode="a", grace=0) as store:
        for step in store.steps()[1:]:
            store.delete(step)
    shutil.rmtree(copy / "roots")
    shutil.rmtree(copy / "tables")
    assert "records of applications" in admin("rebuild", copy).out
    assert annotations(copy) == {1: ({}, None, None)}


def test_a_repair_keeps_them(tmp_path, admin):
    path, copy = tmp_path / "store", tmp_path / "copy"
    expected = long_history(path)
    shutil.copytree(path, copy)
    for segment in segment_files(path):
        data = bytearray(segment.read_bytes())
        data[4096] ^= 1
        segment.write_bytes(data)
    admin("repair", path, "--from", copy, status=0)
    assert annotations(path) == expected


def words_of(dump, path):
    """The header of `kv-dump steps`, and its rows."""
    header, *rows = (line.split() for line in dump("steps", path, status=0).out.splitlines())
    return header, rows


def test_steps_show_the_parent_and_the_run_only_where_they_matter(tmp_path, dump):
    path = tmp_path / "store"

    def save(*steps, **tuning):
        for step in steps:
            store.save(step, {"n": step}, overwrite=True, tuning=SaveTuning(**tuning))

    with cairn.open(path, mode="a") as store:
        save(10, 20, 30)
        store.delete(20)
        assert not {"PARENT", "RUN"} & set(words_of(dump, path)[0])

        store.load({"n": 0}, step=10)
        save(40, 50)
        save(10)  # the parent of 40 has been replaced
        header, rows = words_of(dump, path)
        assert "RUN" not in header and header[-1] == "PARENT"
        assert [row[-2:] for row in rows] == [
            ["50", "-"],  # the base, and no parent
            ["20", "(absent)"],
            ["10", "(absent)"],
            ["40", "40"],
        ]

        save(60, run="7" * 32)
    header, rows = words_of(dump, path)
    assert header[-2:] == ["PARENT", "RUN"]
    assert rows[-1][-2:] == ["10", "77777777"]
    assert len({row[-1] for row in rows}) == 2
    (last,) = dump("steps", path, "--json", status=0).json()["steps"][-1:]
    assert last["run"] == "7" * 32 and last["parent"]["step"] == 10
