"""Each error of the package names what is wrong, where, and the next thing to try, which works."""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import flip_byte, segment_files

import cairn

BIN = Path(cairn.__file__).parents[2] / "bin"
Call = Callable[[Path], Any]


class Case(NamedTuple):
    """One error: the call, its class, what the text contains about what is wrong and where, the
    next thing to try, and a call that does it."""

    call: Call
    kind: type[BaseException]
    found: tuple[str, ...]
    next: str
    fix: Call


def state() -> dict[str, Any]:
    return {
        "model": {"weight": torch.ones(8, 4), "bias": torch.zeros(8)},
        "step": 100,
    }


def opened(mode: str, call: Callable[[cairn.Store], Any]) -> Call:
    def run(folder: Path) -> Any:
        with cairn.open(folder / "store", mode=mode) as store:
            return call(store)

    return run


reads = functools.partial(opened, "r")
writes = functools.partial(opened, "a")


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
        flip_byte(segment, 4096)


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
    "two writers": Case(
        writes(lambda store: cairn.open(store.address, mode="a")), cairn.Conflict,
        ("process", "/leases/"), "close it there, open for reading, or take over",
        writes(lambda store: cairn.open(store.address).close()),
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
    "pattern": Case(
        reads(lambda store: store.read("modle")), cairn.NotFound, ("step 100", "modle"),
        "did you mean 'model'?", reads(lambda store: store.read("model")),
    ),
    "key": Case(
        reads(lambda store: store.read_slice("model.wieght", [])), cairn.NotFound,
        ("step 100", "model.wieght"), "did you mean 'model.weight'?",
        reads(lambda store: store.read_slice("model.weight", [])),
    ),
}

LOADING = {
    "dtype": Case(
        reads(lambda store: store.load(weight(dtype=torch.bfloat16), strict=False)), cairn.Invalid,
        ("'model.weight' is float32 [8, 4] in step 100", "bfloat16 [8, 4]"), "pass cast=True",
        reads(lambda store: store.load(weight(dtype=torch.bfloat16), strict=False, cast=True)),
    ),
    "shape": Case(
        reads(lambda store: store.load(weight(9), strict=False)), cairn.Invalid,
        ("'model.weight' is float32 [8, 4] in step 100", "[9, 4]"),
        "pass keys='!model.weight' to leave it out, or read a part of it with read_slice()",
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
        ("step 100 lacks 'module.model.weight'",), "pass strip_wrappers=True",
        reads(lambda store: store.load({"module": state()}, strip_wrappers=True)),
    ),
    "another prefix": Case(
        reads(lambda store: store.load({"net": state()})), cairn.NotFound,
        ("step 100 lacks 'net.model.weight'",), "pass rename={{'^': 'net.'}}",
        reads(lambda store: store.load({"net": state()}, rename={"^": "net."})),
    ),
    "nothing matches": Case(
        reads(lambda store: store.load({"module": state()}, strict=False)), cairn.NotFound,
        ("step 100 has no key of the state", "'module.model.weight'"), "pass strip_wrappers=True",
        reads(lambda store: store.load({"module": state()}, strip_wrappers=True)),
    ),
    "unexpected": Case(
        reads(lambda store: store.load(weight())), cairn.Invalid,
        ("the state lacks 'model.bias'", "step 100"), "load a part with keys=...",
        reads(lambda store: store.load(weight(), keys="model.weight")),
    ),
}

WRITING = {
    "exists": Case(
        writes(lambda store: store.save(100, {"a": 1})), cairn.Conflict, ("exists", "step 100"),
        "overwrite=True replaces it",
        writes(lambda store: store.save(100, {"a": 1}, overwrite=True)),
    ),
    "reader": Case(
        reads(lambda store: store.save(7, {"a": 1})), cairn.Invalid, ("for reading only", "step 7"),
        'cairn.open(..., mode="a") does so', writes(lambda store: store.save(7, {"a": 1})),
    ),
    "base": Case(
        writes(lambda store: store.save(7, {"a": 1},
            tuning=cairn.SaveTuning(base_step=8))), cairn.NotFound, ("step 8",),
        "Store.steps() lists all steps", writes(lambda store: store.steps()),
    ),
    "chunks": Case(
        writes(lambda store: store.save(7, state(),
            tuning=cairn.SaveTuning(chunk_bytes=0))), cairn.Invalid,
        ("chunk_bytes is 0",), "give at least 1",
        writes(lambda store: store.save(7, state(), tuning=cairn.SaveTuning(chunk_bytes=4096))),
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "opening": OPENING, "reading": READING, "loading": LOADING, "writing": WRITING,
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
    case.fix(folder)
