"""Every verb on stores with random damage: it ends with a status of ours, and never by a signal.

Under a sanitizer (tools/sanitized_programs.sh), it also reports what else goes wrong.
"""

import os
import random
import shutil

import cairn
import pytest
import torch

from tool_programs import into_store, run_program

SEED = int(os.environ.get("CAIRN_TEST_SEED", "42"))
DAMAGES = int(os.environ.get("CAIRN_DAMAGES", "40"))  # stores
SHARES = 4  # tests that divide them, so that they can run at the same time

READS = (
    "kv-dump {s}|kv-dump steps {s}|kv-dump keys {s}@2 --json|kv-dump chunks {s}|kv-dump show {s} w"
    "|kv-dump diff {s}@1 {s}@3 --values|kv-dump history {s} w|kv-dump space {s}"
    "|kv-dump log {s}|kv-dump blame {s} w --values|kv-dump fingerprint {s} --sha256"
    "|kv-dump segments {s}|kv-dump verify {s}|kv-dump report {s} -o {o}/report.html"
    "|kv-admin export {s}@2 {o}/w.safetensors w ids --overwrite|kv-admin export {s} {o}/model.pt"
    "|kv-admin push {s}@1,2,3 {o}/copy|kv-admin compact {s} --dry-run"
)
WRITES = (
    "kv-admin compact {s} --now|kv-admin merge {s}@{{1,2}} --into 9|kv-admin delete {s} 1"
    "|kv-admin rename {s}@3 w=v --into 9|kv-admin graft {s}@3 --from 1 ids --into 9"
    "|kv-admin tag {s}@1 good|kv-admin prune {s} --keep-last 1|kv-admin fork {s}@1 --into 9"
    "|kv-admin statistics {s}@{{1,2,3}}|kv-admin repair {s} --from {o}/other"
    "|kv-admin push {o}/other {s}|kv-admin rebuild {s}"
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A store with whole chunks, pages, deltas, compressed chunks, statistics, tags and metrics."""
    folder = tmp_path_factory.mktemp("healthy")
    generator = torch.Generator().manual_seed(SEED)
    state = {
        "w": torch.randn(300, 300, generator=generator),
        "ids": torch.arange(70_000),
        "zeros": torch.zeros(200_000),
        "small": [torch.ones(3), 7, "text", None],
    }
    with cairn.open(folder / "store", mode="a") as store:
        store.save(1, state, tuning=cairn.SaveTuning(statistics=True), tags=["first"])
        state["w"][::7, 3] += 1
        store.save(2, state, tuning=cairn.SaveTuning(deltas=True), metrics={"loss": 0.5})
        state["ids"] += 1
        state["small"][1] = 8
        store.save(3, state, tuning=cairn.SaveTuning(compress=True), note="the last one")
    into_store(folder / "other", {"w": state["w"]}, first=20)
    return folder


def damage(store, generator):
    """Damages one file, and returns a description."""
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    kinds = sorted({path.relative_to(store).parts[0] for path in files})
    kind = generator.choice(kinds)
    path = generator.choice([f for f in files if f.relative_to(store).parts[0] == kind])
    content = bytearray(path.read_bytes())
    # The ends of files describe the rest, so that half of the positions are there.
    near_end = generator.random() < 0.5
    begin = max(0, len(content) - 600) if near_end else 0
    position = generator.randrange(begin, len(content))
    how = generator.choice(["flip", "flip", "flip", "cut", "zero", "noise"])
    if how == "flip":
        content[position] ^= 1 << generator.randrange(8)
    elif how == "cut":
        del content[position:]
    else:
        count = min(generator.randrange(1, 64), len(content) - position)
        content[position : position + count] = (
            bytes(count) if how == "zero" else generator.randbytes(count)
        )
    path.write_bytes(content)
    return f"seed {SEED}: {how} at {position} of {path.relative_to(store)}"


def run_all(healthy, tmp_path, generator):
    """Runs every verb on a copy of the store, damaged if there is a generator. Yields (the damage,
    the command, what finished)."""
    store = tmp_path / "store"
    (tmp_path / "out").mkdir()
    shutil.copytree(healthy / "other", tmp_path / "out" / "other")
    shutil.copytree(healthy / "store", tmp_path / "original")
    place = damage(tmp_path / "original", generator) if generator else "no damage"
    for command in (READS + "|" + WRITES).split("|"):
        if command in WRITES.split("|") or not store.exists():
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(tmp_path / "original", store)
        words = command.format(s=store, o=tmp_path / "out").split()
        try:
            yield place, command, run_program(*words)
        except AssertionError as error:
            raise AssertionError(f"{place}: {command}") from error
    for name in ("store", "original", "out"):
        shutil.rmtree(tmp_path / name)


def test_every_verb_succeeds_without_damage(healthy, tmp_path):
    expected = {"diff": 1, "rebuild": 2}  # they differ; there is nothing to rebuild
    for _, command, finished in run_all(healthy, tmp_path, None):
        status = expected.get(command.split()[1], 0)
        assert finished.status == status, (command, finished.err)


@pytest.mark.parametrize("share", range(SHARES))
def test_no_verb_is_ended_by_damage(healthy, tmp_path, share):
    for number in range(share, DAMAGES, SHARES):
        for _ in run_all(healthy, tmp_path, random.Random(f"{SEED}-{number}")):
            pass
