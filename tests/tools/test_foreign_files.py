"""Goal: nothing foreign is touched. Files that Cairn did not create are around, in and next to a
store and a cache, with every name that resembles Cairn's, hidden, linked and in links that are
loops. Each operation leaves their names, bytes, modes and targets as they were."""

import os
import re
import stat

import pytest
import torch
from cairn_testing import flip_byte
from ranks import run_on_ranks
from safetensors.torch import save_file
from tool_programs import into_store, run_program

import cairn

SESSION = "00000001" + "0" * 24
TEMPORARY = ".0123456789abcdef.tmp"
GARBAGE = "00000000-0123456789abcdef01234567"

# Names that Cairn gives, in the folders in which it gives them. A crash leaves such files, and the
# next open for writing removes them.
OWN = {
    "": [TEMPORARY],
    "roots": [TEMPORARY],
    "tables": [TEMPORARY, f"{GARBAGE}.sst"],
    "segments": [TEMPORARY, f"{GARBAGE}.seg"],
    "pages": [TEMPORARY, f"{GARBAGE}.steps"],
    "leases": [TEMPORARY, "0" * 32],
    f"pending/{SESSION.replace('1', '0')}-7-0": [TEMPORARY, "1.part", "failed"],
}
FOLDERS = ("roots", "tables", "segments", "pages", "pending", "leases")

# In the folders of a store and of a cache, these resemble the names above.
SIMILAR = (
    ".hidden", ".tmp", ".0123456789ABCDEF.tmp", ".abcdefghijklmnop.tmp", ".0123456789abcde.tmp",
    "0123456789abcdef.tmp", f"{GARBAGE}.seg.bak", f"{GARBAGE}.sst~", "1-2.seg",
    "00000000-0123456789abcdefg1234567.seg", "00000000-0123456789ABCDEF01234567.sst",
    "00000000-0123456789abcdef.seg", "0.root", "a.part",
    "0123456789abcdef.root.old", f"{SESSION}.lease", "CAIRN.bak", "newest-root.old", "x.xxh3",
    "notes.txt",
)  # fmt: skip
# Elsewhere, all names are foreign.
EXACT = (
    TEMPORARY, f"{GARBAGE}.seg", f"{GARBAGE}.sst", "fffffffffffffffe.root", SESSION, "1.part",
    "CAIRN", "hint", "newest-root", ".lock", f"segments-{GARBAGE}.seg",
    f"segments-{GARBAGE}.seg.xxh3",
    "report.html.part", "out.safetensors.1.tmp",
)  # fmt: skip


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"foreign {path}".encode())
    os.utime(path, (0, 0))  # older than everything else
    path.chmod(0o640)


def plant(folder, names):
    for name in names:
        write(folder / name)


def plant_foreign(work, store, cache):
    """Creates the tree. Returns its folders that have no other files than those."""
    for folder in (work, work / "nearby", store / "notes", cache, cache / "data",
                   cache / "0123456789abcdef"):  # fmt: skip
        plant(folder, SIMILAR)
    closed = [work / "nearby", store / "notes", cache / "data", cache / "0123456789abcdef"]
    plant(store, [name for name in SIMILAR if name != "0.root"])
    for name in ("nearby/deep", "nearby/segments", "nearby/pending/1-2-3"):
        plant(work / name, SIMILAR + EXACT)
        closed.append(work / name)
    for name in ("nearby/empty", "store/empty", "cache/empty"):
        (work / name).mkdir(parents=True)
        closed.append(work / name)
    plant(work / "nearby", EXACT)
    plant(store / "notes", EXACT)
    plant(cache / "data", EXACT)
    for parent in (store, cache):
        (parent / "loop").symlink_to(".")
        (parent / "up").symlink_to("..")
        (parent / "dangling").symlink_to("nowhere")
        (parent / "linked").symlink_to(work / "nearby")
    return closed


def plant_in_store(store, nearby):
    """Adds files to the folders of a store. Returns the folders that are foreign."""
    closed = []
    for folder in FOLDERS:
        plant(store / folder, SIMILAR)
        plant(store / folder / "old", SIMILAR + EXACT)
        closed.append(store / folder / "old")
        (store / folder / "loop").symlink_to(".")
        (store / folder / "linked").symlink_to(nearby)
        (store / folder / "file.seg").symlink_to(nearby / TEMPORARY)
        (store / folder / ".fedcba9876543210.tmp").symlink_to(nearby / TEMPORARY)
    (store / "pending" / f"{SESSION}-8-0").symlink_to(nearby)
    plant(store / "pending" / f"{SESSION}-9-0", SIMILAR)
    os.mkfifo(store / "roots" / ".1111111111111111.tmp")
    return closed


def plant_leftovers(store):
    for folder, names in OWN.items():
        plant(store / folder, names)


def described(path):
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return status.st_mode, os.readlink(path)
    return status.st_mode, path.read_bytes() if stat.S_ISREG(status.st_mode) else None


class ForeignTree:
    """What must remain: all files below a folder at this time that are not named in `own`, and
    nothing more in the folders `closed`."""

    def __init__(self, work, own, closed):
        paths = [path for path in walk(work) if not own(path)]
        self._files = {path: described(path) for path in paths}
        self._closed = {folder: sorted(os.listdir(folder)) for folder in closed}

    def check(self, operation):
        for path, before in self._files.items():
            assert os.path.lexists(path), f"{operation}: {path} was removed"
            assert described(path) == before, f"{operation}: {path} was changed"
        for folder, names in self._closed.items():
            assert sorted(os.listdir(folder)) == names, f"{operation}: {folder} has other files"


def walk(folder):
    for entry in os.scandir(folder):
        path = folder / entry.name
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from walk(path)


OWN_PATH = re.compile(
    r"(store|copy)/(CAIRN|hint|\.[0-9a-f]{16}\.tmp|(roots|tables|segments|pages|leases)"
    r"(/[0-9a-f]{8}-[0-9a-f]{24}\.(seg|sst|steps)|/[0-9a-f]{16}\.root|/[0-9a-f]{32}"
    r"|/\.0123456789abcdef\.tmp)?"
    r"|pending(/[0-9a-f]{32}-7-0(/.*)?|/\.0123456789abcdef\.tmp)?)|cache/cairn-cache-[0-9]+(/.*)?"
)


def admin(*words, **options):
    run_program("kv-admin", *words, **options, status=0)


def state(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {f"w{i}": torch.randn(256, 256, generator=generator) for i in range(4)},
        "step": seed,
    }


def save_operations(path):
    with cairn.open(path, mode="a", grace=0) as store:
        yield "open", store
        store.save(1, state(1), tags=["first"])
        yield "save", store
        changed = state(1)
        changed["model"]["w1"][3] += 1
        store.save(2, changed, tuning=cairn.SaveTuning(base_step=1))
        yield "incremental save", store
        store.save(3, changed, tuning=cairn.SaveTuning(base_step=1, deltas=True))
        yield "deltas", store
        store.save(2, state(2), overwrite=True)
        yield "overwrite", store
        store.save_async(4, state(4), tuning=cairn.SaveTuning(statistics=True)).result()
        yield "save_async", store
        with store.writer(5) as writer:
            writer.add("x", torch.arange(100_000))
        yield "writer", store
        store.save(6, {"t": torch.zeros(1 << 16)}, tuning=cairn.SaveTuning(compress=True))
        yield "compressed save", store
        store.tag(4, "best")
        store.untag("first")
        yield "tags", store
        store.fork(4, into=7)
        store.merge([1, 4], into=8)
        yield "fork and merge", store
        store.delete(1)
        yield "delete", store
        for step in range(20, 90):
            store.save(step, {"step": step})
        yield "saves that remove old roots", store
        store.prune(keep_last=5)
        yield "prune", store
        store.compact(max_dead=0)
        yield "compact", store
        with pytest.raises(cairn.Invalid):
            store.save(99, {"x": object()})
        yield "a save that fails", store


def save_on_ranks(rank, path):
    with cairn.open(path, mode="a", grace=0) as store:
        for step in (200, 201, 202):
            store.save(step, {**state(step), f"of rank {rank}": torch.full((1 << 16,), step)})
        store.save_async(202, {**state(1), f"of rank {rank}": rank}, overwrite=True).result()
        store.delete(200, 201)


def copies(path, copy, damage):
    """Two ranks, copies and a repair. `damage` changes a byte of each segment of the store."""
    run_on_ranks(save_on_ranks, str(path), world_size=2)
    yield "saves of two ranks"
    admin("push", path, copy)
    admin("mirror", path, copy)  # all steps
    yield "push and mirror"
    damage()
    assert run_program("kv-dump", "verify", path).status == 1
    yield "verify with damage"
    repaired = run_program("kv-admin", "repair", path, "--from", copy, "--json", status=0)
    assert repaired.json()["repaired_chunks"] > 0, repaired.out
    yield "repair"
    assert run_program("kv-dump", "verify", path).status == 0
    with cairn.open(path, mode="a", grace=0) as store:
        store.delete(202)
        store.save(100, state(100), mirror=copy)
        store.wait_mirrored()
    yield "mirror"
    with cairn.open(path, mode="a", grace=0) as store, cairn.open(copy) as source:
        store.delete(100)
        cairn.copy_steps(source, store, [100])
    yield "pull"


def other_operations(work, path):
    admin("rename", f"{path}@100", "model=net", "--into", 101)
    admin("drop", f"{path}@100", "model.w1", "--into", 102)
    admin("graft", f"{path}@101", "--from", 102, "model", "--into", 103)
    yield "edits"
    for kind in ("out.safetensors", "out.pt", "out.dcp"):
        admin("export", f"{path}@100", work / kind)
        admin("export", f"{path}@100", work / kind, "--overwrite")
    yield "exports"
    save_file(state(1)["model"], work / "in.safetensors")
    admin("import", path, "--step", 110, work / "in.safetensors")
    yield "import"
    assert run_program("kv-dump", "verify", path).status == 0
    run_program("kv-dump", "report", path, "-o", work / "report.html", status=0)
    yield "verify and report"
    admin("check-storage", work / "nearby", "--rounds", 1)
    yield "check-storage"
    for root in (path / "roots").glob("f*.root"):
        root.unlink()
    admin("rebuild", path)
    with cairn.open(path, mode="a", grace=0) as store:
        assert 110 in store.steps()
    yield "rebuild"


def cache_operations(cache):
    """Fills a cache of 1 MiB from a storage that is not a directory, again and again."""
    os.environ["CAIRN_CACHE"] = str(cache)
    os.environ["CAIRN_CACHE_BYTES"] = str(1 << 20)
    into_store("memory:foreign-files", *map(state, range(4)), first=0)
    for step in range(4):
        with cairn.open("memory:foreign-files") as store:
            store.read(step=step)
        yield f"load {step} through the cache"
    folder = cache / f"cairn-cache-{os.geteuid()}"
    kept = sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
    assert 0 < kept <= 1 << 20, "nothing was evicted"


def test_operations_leave_foreign_files_as_they_are(tmp_path, monkeypatch):
    for name in ("CAIRN_CACHE", "CAIRN_CACHE_BYTES"):
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    work = tmp_path
    store, cache = work / "store", work / "cache"
    closed = plant_foreign(work, store, cache)

    def own(path):
        return OWN_PATH.fullmatch(path.relative_to(work).as_posix()) is not None

    def damage():
        for path in (store / "segments").glob("*.seg"):
            if own(path):
                flip_byte(path, path.stat().st_size // 2)

    tree = ForeignTree(work, own, closed)
    cairn.open(store, mode="a").close()
    tree.check("create")
    closed += plant_in_store(store, work / "nearby")
    tree = ForeignTree(work, own, closed)
    for operation, _ in save_operations(store):
        tree.check(operation)
    plant_leftovers(store)
    cairn.open(store, mode="a").close()
    tree.check("an open after a crash")
    for folder, names in OWN.items():
        left = [name for name in names if (store / folder / name).exists()]
        assert not left, f"{folder} still has {left}"
    for operations in (
        copies(store, work / "copy", damage),
        other_operations(work, store),
        cache_operations(cache),
    ):
        for operation in operations:
            tree.check(operation)
