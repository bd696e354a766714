"""Each error of the package names what is wrong, where, and the next thing to try, which works."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import segment_files

import cairn
import cairn.convert
from cairn.dcp import CairnReader, CairnWriter

BIN = Path(cairn.__file__).parents[2] / "bin"
Call = Callable[[Path], Any]


class Case(NamedTuple):
    """One error: the call, its class, what the text contains about what is wrong and where, the
    next thing to try, and a call that does it."""

    call: Call
    kind: type[BaseException]
    found: tuple[str, ...]
    next: str
    fix: Call | None = None


def state() -> dict[str, Any]:
    return {
        "model": {"weight": torch.ones(8, 4), "bias": torch.zeros(8)},
        "step": 100,
        "scale": np.ones(3, np.float32),
    }


def opened(mode: str, call: Callable[[cairn.Store], Any]) -> Call:
    def run(folder: Path) -> Any:
        with cairn.open(folder / "store", mode=mode) as store:
            return call(store)

    return run


def reads(call: Callable[[cairn.Store], Any]) -> Call:
    return opened("r", call)


def writes(call: Callable[[cairn.Store], Any]) -> Call:
    return opened("a", call)


def program(line: str) -> Call:
    """Runs a command line of a program, as the error names it."""

    def run(folder: Path) -> None:
        name, *words = shlex.split(line)
        done = subprocess.run([BIN / name, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stdout, done.stderr)

    return run


def weight(rows: int = 8, **options: Any) -> dict[str, Any]:
    return {"model": {"weight": torch.zeros(rows, 4, **options)}}


def damage(folder: Path) -> None:
    for segment in segment_files(folder / "store"):
        data = bytearray(segment.read_bytes())
        data[4096] ^= 1
        segment.write_bytes(data)


def load_damaged(folder: Path) -> None:
    damage(folder)
    reads(lambda store: store.read())(folder)


def read_without_roots(folder: Path) -> None:
    for root in (folder / "store/roots").iterdir():
        root.unlink()
    cairn.open(folder / "store")


OPENING = {
    "absent": Case(
        lambda folder: cairn.open(folder / "stroe"), cairn.NotFound, ("no store here", "/stroe)"),
        "did you mean {folder}/store?", lambda folder: cairn.open(folder / "store").close(),
    ),
    "alone": Case(
        lambda folder: cairn.open(folder / "empty/gpt"), cairn.NotFound, ("no store here", "gpt)"),
        'mode="a" creates one', lambda folder: cairn.open(folder / "empty/gpt", mode="a").close(),
    ),
    "empty": Case(
        lambda folder: cairn.open(folder / "empty"), cairn.NotFound, ("no store here", "empty)"),
        'mode="a" creates one', lambda folder: cairn.open(folder / "empty", mode="a").close(),
    ),
    "model directory": Case(
        lambda folder: cairn.open(folder / "hf"), cairn.Invalid, ("not a Cairn store", "/hf)"),
        "run kv-admin import STORE --step N {folder}/hf --format hf to import it",
        program("kv-admin import new --step 7 hf --format hf"),
    ),
    "DCP directory": Case(
        lambda folder: cairn.open(folder / "dcp", mode="a"), cairn.Invalid, (".metadata", "/dcp)"),
        "run kv-admin import STORE --step N {folder}/dcp to import it",
        program("kv-admin import new --step 7 dcp"),
    ),
    "file": Case(
        lambda folder: cairn.open(folder / "model.pt"), cairn.Invalid, ("a file", "model.pt)"),
        "run kv-admin import STORE --step N {folder}/model.pt to import it",
        program("kv-admin import new --step 7 model.pt"),
    ),
    "inside": Case(
        lambda folder: cairn.open(folder / "store/segments"), cairn.Invalid, ("not a Cairn store",),
        "did you mean {folder}/store?", lambda folder: cairn.open(folder / "store").close(),
    ),
    "mode": Case(
        opened("w", lambda store: None), cairn.Invalid, ("mode 'w'",), "'a' reads and writes",
        writes(lambda store: None),
    ),
    "address": Case(
        lambda folder: cairn.open("s4://bucket/run"), cairn.Invalid, ('"s4:"', "s4://bucket/run"),
        "known are file:PATH, s3://BUCKET/PREFIX, rados:POOL/NAMESPACE and memory:NAME",
    ),
    "takeover": Case(
        lambda folder: cairn.open(folder / "store", take_over=True), cairn.Invalid,
        ("take_over",), "requires mode 'a'",
        lambda folder: cairn.open(folder / "store", mode="a", take_over=True).close(),
    ),
    "closed": Case(
        lambda folder: reads(lambda store: store)(folder).steps(), cairn.Invalid,
        ("the store is closed",), "open it again", reads(lambda store: store.steps()),
    ),
    "two writers": Case(
        writes(lambda store: cairn.open(store._address, mode="a")), cairn.Conflict,
        ("process", "/leases/"), "close it there, open for reading, or take over",
        writes(lambda store: cairn.open(store._address).close()),
    ),
    "damaged payload": Case(
        load_damaged, cairn.Corrupt, ("does not match its digest", "step 100", "/segments/"),
        "kv-admin repair {folder}/store --from MIRROR to replace it from a mirror",
        program("kv-admin repair store --from copy"),
    ),
    "roots": Case(
        read_without_roots, cairn.Corrupt, ("roots", "/store)"),
        "run kv-admin rebuild {folder}/store", program("kv-admin rebuild store"),
    ),
}

READING = {
    "step": Case(
        reads(lambda store: store.read(step=101)), cairn.NotFound, ("step 101", "/store)"),
        "Store.steps() lists all steps", reads(lambda store: store.steps()),
    ),
    "tag": Case(
        reads(lambda store: store.read(step="bets")), cairn.NotFound, ("tag 'bets'", "/store)"),
        "the store has best", reads(lambda store: store.read(step="best")),
    ),
    "number": Case(
        reads(lambda store: store.read(step=-1)), cairn.Invalid, ("step -1",), "0 to 2**64 - 1",
        reads(lambda store: store.read(step=100)),
    ),
    "pattern": Case(
        reads(lambda store: store.read("modle")), cairn.NotFound, ("step 100", "modle"),
        "did you mean 'model'?", reads(lambda store: store.read("model")),
    ),
    "other pattern": Case(
        reads(lambda store: store.read("zzz")), cairn.NotFound, ("step 100", "zzz"),
        "keys() lists them", reads(lambda store: store.keys()),
    ),
    "set": Case(
        reads(lambda store: store.read("a[")), cairn.Invalid, ("pattern 'a['",),
        "write '?' for the character itself",
    ),
    "key": Case(
        reads(lambda store: store.read_slice("model.wieght", [])), cairn.NotFound,
        ("step 100", "model.wieght"), "did you mean 'model.weight'?",
        reads(lambda store: store.read_slice("model.weight", [])),
    ),
    "keys": Case(
        reads(lambda store: store.read_slices({"model.wieght": []})), cairn.NotFound,
        ("step 100", "model.wieght"), "did you mean 'model.weight'?",
        reads(lambda store: store.read_slices({"model.weight": []})),
    ),
    "range": Case(
        reads(lambda store: store.read_slice("model.weight", [(0, 9)])), cairn.Invalid,
        ("(0, 9)", "dimension 0 of 'model.weight'"), "give (begin, end) with 0 <= begin <= end",
        reads(lambda store: store.read_slice("model.weight", [(0, 8)])),
    ),
    "dimensions": Case(
        reads(lambda store: store.read_slice("model.bias", [0, 0])), cairn.Invalid,
        ("'model.bias' has 1 dimensions",), "give at most one range for each dimension",
        reads(lambda store: store.read_slice("model.bias", [0])),
    ),
    "value": Case(
        reads(lambda store: store.read_slice("step", [])), cairn.Invalid, ("'step'", "step 100"),
        "use read()", reads(lambda store: store.read("step")),
    ),
    "out": Case(
        reads(lambda store: store.read_slice("model.bias", [], out=torch.zeros(9))), cairn.Invalid,
        ("'model.bias' is float32 [8]", "float32 [9]"), "give out= the dtype and shape of the step",
        reads(lambda store: store.read_slice("model.bias", [], out=torch.zeros(8))),
    ),
    "mmap": Case(
        reads(lambda store: store.read(mmap=True, dtype=torch.bfloat16)), cairn.Invalid,
        ("mmap",), "stored tensors, which are not converted",
        reads(lambda store: store.read(mmap=True)),
    ),
    "dtype name": Case(
        reads(lambda store: store.read(dtype="flot16")), cairn.Invalid, ("dtype='flot16'",),
        "such as torch.bfloat16 or 'bfloat16'", reads(lambda store: store.read(dtype="float16")),
    ),
}

LOADING = {
    "dtype": Case(
        reads(lambda store: store.load(weight(dtype=torch.bfloat16), strict=False)), cairn.Invalid,
        ("'model.weight' is float32 [8, 4] in step 100", "bfloat16 [8, 4]"), "pass cast=True",
        reads(lambda store: store.load(weight(dtype=torch.bfloat16), strict=False, cast=True)),
    ),
    "meta dtype": Case(
        reads(lambda store: store.load(weight(dtype=torch.half, device="meta"), strict=False)),
        cairn.Invalid, ("'model.weight' is float32 [8, 4] in step 100",), "pass cast=True",
        reads(lambda s: s.load(weight(dtype=torch.half, device="meta"), strict=False, cast=True)),
    ),
    "integers": Case(
        reads(lambda store: store.load(weight(dtype=torch.int32), strict=False)), cairn.Invalid,
        ("'model.weight'", "int32"), "give the state the dtype of the step, or read() and convert",
        reads(lambda store: store.read("model.weight", flat=True)["model.weight"].int()),
    ),
    "shape": Case(
        reads(lambda store: store.load(weight(9), strict=False)), cairn.Invalid,
        ("'model.weight' is float32 [8, 4] in step 100", "[9, 4]"),
        "leave it out with keys='!model.weight', or read a part of it with read_slice()",
        reads(lambda store: store.load(weight(9), strict=False, keys="!model.weight")),
    ),
    "missing": Case(
        reads(lambda store: store.load({"model": {"wieght": torch.zeros(8, 4)}})), cairn.NotFound,
        ("step 100 lacks 'model.wieght'",), "did you mean 'model.weight'?",
        reads(lambda store: store.load(weight(), keys="model.weight")),
    ),
    "missing prefix": Case(
        reads(lambda store: store.load(weight()["model"])), cairn.NotFound,
        ("step 100 lacks 'weight'", "has 'model.weight'"), "pass prefix='model'",
        reads(lambda store: store.load(state()["model"], prefix="model")),
    ),
    "a wrapper's prefix": Case(
        reads(lambda store: store.load({"module": state()})), cairn.NotFound,
        ("step 100 lacks 'module.model.weight'",), "pass rename={{'^': 'module.'}}",
        reads(lambda store: store.load({"module": state()}, rename={"^": "module."})),
    ),
    "more": Case(
        reads(lambda store: store.load({**state(), "zzz": torch.ones(1)})), cairn.NotFound,
        ("step 100 lacks 'zzz'",), "use strict=False",
        reads(lambda store: store.load({**state(), "zzz": torch.ones(1)}, strict=False)),
    ),
    "unexpected": Case(
        reads(lambda store: store.load(weight())), cairn.Invalid,
        ("the state lacks 'model.bias'", "step 100"), "load a part with keys=...",
        reads(lambda store: store.load(weight(), keys="model.weight")),
    ),
    "value": Case(
        reads(lambda store: store.load({"step": torch.ones(1)}, strict=False)), cairn.Invalid,
        ("'step' is a plain value in step 100", "Tensor"), "make both the same, or use read()",
        reads(lambda store: store.load({"step": 0}, strict=False)),
    ),
    "expanded": Case(
        reads(lambda s: s.load({"model": {"bias": torch.zeros(1).expand(8)}}, strict=False)),
        cairn.Invalid, ("'model.bias'", "share memory"), "load into a copy",
        reads(lambda store: store.load({"model": {"bias": torch.zeros(8)}}, strict=False)),
    ),
}

WRITING = {
    "exists": Case(
        writes(lambda store: store.save(100, {"a": 1})), cairn.Conflict, ("exists", "step 100"),
        "overwrite=True replaces it",
        writes(lambda store: store.save(100, {"a": 1}, overwrite=True)),
    ),
    "exists, asynchronous": Case(
        writes(lambda store: store.save_async(100, {"a": 1}).result()), cairn.Conflict,
        ("step 100 exists",), "overwrite=True replaces it",
        writes(lambda store: store.save_async(100, {"a": 1}, overwrite=True).result()),
    ),
    "reader": Case(
        reads(lambda store: store.save(7, {"a": 1})), cairn.Invalid, ("for reading only", "step 7"),
        'cairn.open(..., mode="a") does so', writes(lambda store: store.save(7, {"a": 1})),
    ),
    "reader, delete": Case(
        reads(lambda store: store.delete(100)), cairn.Invalid, ("for reading only", "/store)"),
        'cairn.open(..., mode="a") does so', writes(lambda store: store.delete(100)),
    ),
    "object": Case(
        writes(lambda store: store.save(7, {"a": {"b": object()}})), cairn.Invalid,
        ("'a.b' is of type builtins.object",), "pass allow_pickle=True to save and load",
        writes(lambda store: store.save(7, {"a": {"b": object()}}, allow_pickle=True)),
    ),
    "sparse": Case(
        writes(lambda store: store.save(7, {"a": torch.eye(2).to_sparse()})), cairn.Invalid,
        ("'a'", "sparse"), ".to_dense() instead",
        writes(lambda store: store.save(7, {"a": torch.eye(2).to_sparse().to_dense()})),
    ),
    "meta": Case(
        writes(lambda store: store.save(7, {"a": torch.ones(2, device="meta")})), cairn.Invalid,
        ("'a' is a meta tensor",), "materialize it before the save",
        writes(lambda store: store.save(7, {"a": torch.ones(2)})),
    ),
    "two names": Case(
        writes(lambda store: store.save(7, {"a.b": 1, "a": {"b": 2}})), cairn.Invalid,
        ("two leaves", "key a.b"), "rename one",
        writes(lambda store: store.save(7, {"a.c": 1, "a": {"b": 2}})),
    ),
    "tags": Case(
        writes(lambda store: store.save(7, {"a": 1}, tags="x")), cairn.Invalid, ("tags='x'",),
        "such as ['x']", writes(lambda store: store.save(7, {"a": 1}, tags=["x"])),
    ),
    "no keys": Case(
        writes(lambda store: store.save(7, state(), keys="zzz")), cairn.Invalid, ("'zzz'",),
        "there is nothing to save", writes(lambda store: store.save(7, state(), keys="model")),
    ),
    "base": Case(
        writes(lambda store: store.save(7, {"a": 1}, base_step=8)), cairn.NotFound, ("step 8",),
        "Store.steps() lists all steps", writes(lambda store: store.steps()),
    ),
    "chunks": Case(
        writes(lambda store: store.save(7, state(), chunk_bytes=0)), cairn.Invalid,
        ("chunk_bytes is 0",), "give at least 1",
        writes(lambda store: store.save(7, state(), chunk_bytes=4096)),
    ),
    "prune": Case(
        writes(lambda store: store.prune()), cairn.Invalid, ("the store has no policy",),
        "state keep_last, keep_every or keep_best", writes(lambda store: store.prune(keep_last=1)),
    ),
    "best": Case(
        writes(lambda store: store.prune(keep_best="loss")), cairn.Invalid, ("'loss'",),
        "write METRIC:N", writes(lambda store: store.prune(keep_best="loss:1")),
    ),
    "merge": Case(
        writes(lambda store: store.merge([100], into=7)), cairn.Invalid, ("at least two steps",),
        "name another one",
    ),
    "writer": Case(
        writes(lambda store: store.writer(7).add("a", torch.ones(1))), cairn.Invalid, ("block",),
        "use `with store.writer(step) as writer:`",
    ),
}

CHECKPOINTS = {
    "no checkpoint": Case(
        lambda folder: dcp.load({}, storage_reader=CairnReader()), BaseException,
        ("no checkpoint is named",), "give the address of a store, or checkpoint_id",
    ),
    "step": Case(
        lambda folder: dcp.load(weight(), storage_reader=CairnReader(folder / "store", step=7)),
        BaseException, ("step 7", "/store)"), "Store.steps() lists all steps",
        lambda folder: dcp.load(weight(), storage_reader=CairnReader(folder / "store", step=100)),
    ),
    "several steps": Case(
        lambda folder: dcp.save(weight(), storage_writer=CairnWriter(folder / "store")),
        BaseException, ("/store has steps, such as 100",), "with step= or ADDRESS@STEP",
        lambda folder: dcp.save(weight(), storage_writer=CairnWriter(folder / "store", step=7)),
    ),
    "rules": Case(
        lambda folder: cairn.convert.load_rules(folder / "text.txt"), cairn.Invalid,
        ("text.txt", "not JSON"), "save_rules writes such a file",
        lambda folder: cairn.convert.save_rules(folder / "text.txt", []),
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "opening": OPENING, "reading": READING, "loading": LOADING, "writing": WRITING,
        "checkpoints": CHECKPOINTS,
    }.items()
    for name, case in cases.items()
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next_steps") / "prepared"
    (folder / "empty").mkdir(parents=True)
    with cairn.open(folder / "store", mode="a") as store:
        store.save(100, state(), tags=["best"], metrics={"loss": 1.0})
    program("kv-admin push store copy")(folder)
    dcp.save(state()["model"], checkpoint_id=folder / "dcp", no_dist=True)
    torch.save(state()["model"], folder / "model.pt")
    (folder / "text.txt").write_text("not JSON")
    program("kv-admin export store hf model --format safetensors")(folder)
    (folder / "hf/config.json").write_text("{}")
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "work"))


@pytest.mark.parametrize("name", CASES)
def test_each_error_names_what_where_and_the_next_thing_to_try(name, folder):
    case = CASES[name]

    with pytest.raises(case.kind) as caught:
        case.call(folder)

    text = str(caught.value)
    for part in (*case.found, case.next.format(folder=folder)):
        assert part in text
    if case.fix is not None:
        case.fix(folder)
