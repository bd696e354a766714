"""Creates the golden stores that do not exist yet, one per feature of the format, with what each
of them contains as JSON.

    LD_PRELOAD=libcairn_fixed_environment_preload.so python make_golden.py BUILD

add.sh calls it. The preloaded library replaces the time, the host and the random numbers.
"""

import collections
import ctypes
import fractions
import functools
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch

import cairn

GOLDEN = pathlib.Path(__file__).resolve().parent
sys.path.append(str(GOLDEN.parents[1] / "tools" / "reference_reader"))
import cairn_reader  # noqa: E402
from contents import described, flatten, found_by_reader, skeleton  # noqa: E402

AdvanceClock = ctypes.CDLL(None)._ZN5cairn7testing12AdvanceClockEv


class Maker:
    """A store, and what its steps contain."""

    def __init__(self, path):
        self.path, self.contents = path, {}

    @functools.cached_property
    def store(self):
        return cairn.open(self.path, "a", grace=0)

    def save(self, step, state, *, metrics=None, note="", tags=(), **tuning):
        AdvanceClock()
        self.store.save(step, state, metrics=metrics, note=note, tags=tags,
                        allow_pickle=self.path.name == "v3-pickles",
                        tuning=cairn.SaveTuning(**tuning))  # fmt: skip
        self.expect(step, state, metrics=metrics or {}, note=note, tags=sorted(tags),
                    records=tuning.get("records") or {})  # fmt: skip

    def expect(self, step, state, *, records=None, **annotations):
        """The contents of a step that was saved, or that results from others."""
        records = {name: data.hex() for name, data in (records or {}).items()}
        self.contents[step] = {
            "state": skeleton(state), "leaves": list(map(described, flatten(state))),
            "records": records, "metrics": {}, "note": "", "tags": [], **annotations,
        }  # fmt: skip

    def delete(self, *steps):
        self.store.delete(*steps)
        for step in steps:
            del self.contents[step]


def numbers(count, dtype=torch.float32, seed=0):
    """Numbers as in a model: distinct, and few of them large."""
    values = numpy.random.default_rng(seed).standard_normal(count)
    return torch.from_numpy(values).to(dtype)


def dtypes(maker):
    state = {}
    for name, _ in cairn_reader.DTYPES[1:]:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            size = torch.empty(0, dtype=dtype).element_size()
            data = torch.arange(6 * size, dtype=torch.uint8) * (1 if name == "bool" else 37)
            data = data % 2 if name == "bool" else data
            state[name] = data.view(dtype).reshape(2, 3)
    kinds = ("<f4", "<i8", "?", "<c16")
    state["arrays"] = [numpy.arange(6).reshape(2, 3).astype(kind) for kind in kinds]
    state["scalars"] = [numpy.float32(1.5), numpy.uint8(3), numpy.bool_(True)]
    state["empty"], state["scalar"] = torch.zeros(0, 4), torch.tensor(1.5)
    maker.save(1, state)


def containers(maker):
    deep = {}
    for _ in range(50):
        deep = {"x": deep}
    maker.save(1, {
        "dict": {"b": 1, "a": torch.ones(2), "empty": {}}, "deep": deep,
        "ordered": collections.OrderedDict(b=1, a=torch.ones(())),
        "counter": collections.Counter("hello"), "size": torch.Size([2, 3]),
        "list": [1, [], (), {}, (torch.zeros(3), "x")],
        "integers": [0, -1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**200), 2**127 - 1],
        "floats": [1.5, -0.0, math.inf, math.nan, complex(1, -0.0)],
        "others": [None, True, False, "", "text \U0001f600", "\ud800", b"", b"bytes\0"],
    })  # fmt: skip
    maker.save(2, torch.ones(3))  # the root is a leaf


def keys(maker):
    maker.save(1, {
        "a.b": torch.ones(1), "a": {"b": torch.zeros(1), "": 1}, "a.b.c": 2, "x\\y": 3, "a\\.b": 4,
        1: 5, "1": torch.ones(2), False: 6, "False": 7, None: 8, "None": 9, 2.5: 10, "2.5": 11,
        "": {"": 12}, "\ud800": 13, -(2**70): 14, 1e300: 15, "größe": 16, "list": [{"0.1": 17}],
    })  # fmt: skip
    maker.save(2, {"plain.key": 1, "other": {"key": torch.ones(1)}})


def ties(maker):
    shared, overlapping = torch.arange(100, dtype=torch.float32), torch.arange(60)
    maker.save(1, {
        "all": shared, "again": shared, "part": shared[10:20], "strided": shared.view(10, 10).t(),
        "bytes": shared.view(torch.uint8)[4:12], "none": shared[:0],
        "one": shared[50:].as_strided((5, 1), (2, 2**62)),
        "hidden": [overlapping[:40], overlapping[20:]], "expanded": torch.arange(5).expand(3, 5),
    })  # fmt: skip


def extents(maker):
    """A chunk of which some pages are rewritten, and chunks that share bytes."""
    tensor = torch.arange(16_400, dtype=torch.int32)
    for step in (1, 2):
        tensor[-1] = step
        maker.save(step, {"pages": tensor, "equal": [torch.ones(64), torch.ones(64)]},
                   share_equal=True)  # fmt: skip


def deltas(maker):
    state = {
        "f8": numbers(300, torch.float64), "f4": numbers(2_000), "bf16": numbers(1_000,
        torch.bfloat16), "c8": numbers(600, torch.complex64),
        "u1": torch.arange(3_001).to(torch.uint8),
    }  # fmt: skip
    maker.save(1, state)
    for step in (2, 3, 4):
        for tensor in state.values():
            changed = tensor[step :: 40 // step]
            changed += 1 if tensor.dtype == torch.uint8 else changed * 2**-7
        maker.save(step, state, deltas=8, compress=step == 4)


def codecs(maker):
    """Chunks that are compressed, with statistics, and some that are not."""
    maker.store.set_compression(True)
    state = {"integers": torch.arange(3_000) // 7, "floats": numbers(2_000, torch.bfloat16),
             "two": torch.arange(60, dtype=torch.int16).reshape(6, 10), "zeros": torch.zeros(2_000)}
    maker.save(1, state, chunk_bytes=1 << 12, statistics=True)
    maker.save(2, {"two": state["two"], "raw": numbers(500)}, compress=False)


def edits(maker):
    first = {"a": {"w": torch.ones(8), "n": 1}, "b": torch.zeros(8), "c": "text"}
    second = {"a": {"w": torch.full((8,), 3.0), "n": 1}, "b": torch.ones(8), "c": "text"}
    maker.save(1, first)
    maker.save(2, second)
    maker.store.edit(2, into=3, drop="c", rename={"b": "d.e"})
    maker.expect(3, {"a": second["a"], "d": {"e": second["b"]}})
    maker.store.edit(1, into=4, graft_from=2, graft="a", under="new")
    maker.expect(4, {**first, "new": {"a": second["a"]}})
    maker.store.merge([1, 2], into=5)
    maker.expect(5, {"a": {"w": torch.full((8,), 2.0), "n": 1}, "b": torch.full((8,), 0.5),
                     "c": "text"})  # fmt: skip


def compaction(maker):
    state = {f"t{i}": numbers(400, seed=i) for i in range(4)}
    for step in range(1, 5):
        state[f"t{step % 4}"] = numbers(400, seed=10 + step)
        state["d"] = numbers(2_000, torch.bfloat16) * (1 + step / 16)
        maker.save(step, state, deltas=True)
    maker.delete(1, 2)
    maker.store.compact(max_dead=0, fold=True, compress=True)


def steps(maker):
    """Two pages of steps, which have too many to be merged."""
    for step in range(1, 122):
        maker.save(step, {"n": 1})
    maker.delete(*(step for step in range(1, 121) if (step - 1) % 56 > 28 or step > 112))


def records(maker):
    """Records of an application, metrics, notes and tags."""
    maker.save(1, {"w": torch.ones(3)}, metrics={"loss": 0.5, "zero": -0.0}, note="a note\n",
               tags=["best", "v1.0"],
               records={"größe": bytes(range(256)), "empty": b""})  # fmt: skip
    maker.save(2, {"w": torch.ones(3)})
    maker.store.edit(2, into=3, records={"added": b"later"})
    maker.expect(3, {"w": torch.ones(3)}, records={"added": b"later"})


def ranks(maker):
    """The steps of the store that make_golden.cc has created."""
    for step in (1, 2):
        tensors = {"empty": [], "frozen": [3] * 1_500, "hot": [step] * 1_000}
        state = {name: torch.tensor(data, dtype=torch.uint8) for name, data in tensors.items()}
        maker.expect(step, {**state, "version": step})


def chunks(maker):
    """Likewise: chunks that are not a grid, and pages of 4 KiB and 1 MiB."""
    matrix = torch.tensor([(i // 64 * 7 + i) % 256 for i in range(12_000)], dtype=torch.uint8)
    for step in (12, 20):
        maker.expect(step, {"w": matrix.view(100, 120)})


def values(maker):
    """Values whose bytes are chunks: of each kind, at the limit, and with a page that changed."""
    state = {"bytes": bytes(range(256)) * 20, "text": "größe \ud800" * 500, "integer": -(3**21_000),
             "limits": [b"x" * 4096, b"x" * 4097], "w": torch.ones(3)}
    maker.save(1, state)
    maker.save(2, {**state, "text": state["text"] + "."}, compress=True)
    maker.store.edit(1, into=3, rename={"bytes": "renamed"}, drop="text")
    maker.expect(3, {"renamed": state["bytes"],
                     **{key: state[key] for key in ("integer", "limits", "w")}})  # fmt: skip


def bcomplex32(maker):
    """Likewise: a dtype that torch has from 2.14 on."""
    array = numpy.arange(12, dtype=numpy.uint32)
    maker.expect(1, {"w": array.reshape(3, 4)})
    maker.contents[1]["leaves"] = [described(array.reshape(3, 4), "bcomplex32")]


def dense(maker):
    """A training state of which every value changes, compressed, then as compressed deltas."""
    state = {
        "weight": numbers(8_000, torch.bfloat16, seed=1), "master": numbers(1_500, seed=2),
        "exp_avg": numbers(1_100, seed=3) * 1e-3, "exp_avg_sq": numbers(1_100, seed=4) ** 2 * 1e-6,
        "half": numbers(2_100, torch.float16, seed=5),
        "pages": (torch.arange(34_000) // 64).bfloat16(),
        "double": numbers(600, torch.float64, seed=6), "step": 1,
    }  # fmt: skip
    maker.save(1, state, compress=True, statistics=True)
    for name in ("master", "exp_avg", "half", "double"):
        state[name] = state[name] * (1 + 2**-7)
    maker.save(2, {**state, "step": 2}, compress=True, deltas=True, metrics={"loss": math.inf})


def descent(maker):
    """A mirror: copies of steps of a run that went back, with a parent that the mirror lacks, of a
    second run, and of an edit, with tags; and the policy of the mirror."""
    with tempfile.TemporaryDirectory() as directory:
        source = Maker(pathlib.Path(directory) / "source")
        for step in (1, 2, 3):
            source.save(step, {"w": torch.full((3,), step)}, tags=["first"] if step == 2 else ())
        source.store.load({"w": torch.zeros(3, dtype=torch.int64)}, step=2)
        source.save(10, {"w": torch.full((3,), 10)}, tags=["fork"], metrics={"loss": 0.25})
        source.save(20, {"w": torch.full((3,), 20)}, run="0123456789abcdef" * 2)
        source.store.edit(3, into=30, records={"why": b"edited"})
        source.expect(30, {"w": torch.full((3,), 3)}, records={"why": b"edited"})
        infos = {step: source.store.step_info(step) for step in source.store.steps()}
        source.store.close()
        with cairn.open(source.path, "r") as opened:
            cairn.copy_steps(opened, maker.store, steps=[2, 3, 10, 20, 30])
    maker.store.tag(2, "first")
    maker.store.tag(10, "fork")
    maker.store.set_policy(keep_last=100, keep_every=10, keep_best="loss:2")
    maker.contents = {step: content for step, content in source.contents.items() if step != 1}
    parents = {step: info.parent.step for step, info in infos.items() if info.parent}
    assert parents == {2: 1, 3: 2, 10: 2, 20: 10, 30: 3}, parents
    assert len({info.run for info in infos.values()}) == 2
    for step in maker.store.steps():
        found = maker.store.step_info(step)
        assert (found.parent, found.run) == (infos[step].parent, infos[step].run), step


def recovered(maker):
    """A store that was rebuilt from the footers of its segments: steps without a run."""
    maker.save(1, {"a": torch.arange(5), "n": 1})
    maker.save(2, {"a": torch.arange(5), "b": [torch.ones(3), "text"]})
    maker.store.close()
    del maker.store
    for folder in ("roots", "tables"):
        shutil.rmtree(maker.path / folder)
    admin = GOLDEN.parents[1] / sys.argv[1] / "bin" / "kv-admin"
    subprocess.run([admin, "rebuild", maker.path], check=True)
    maker.expect(1, {"a": torch.arange(5)})
    maker.expect(2, {"b.0": torch.ones(3)})  # step 2 shares the chunk of "a"


def pickles(maker):
    maker.save(1, {"fraction": fractions.Fraction(1, 3), "w": torch.ones(3)})


MAKERS = (dtypes, containers, keys, ties, extents, deltas, codecs, edits, compaction, steps,
          records, ranks, chunks, values, bcomplex32, dense, descent, recovered,
          pickles)  # fmt: skip


def main():
    for make in MAKERS:
        path = GOLDEN / f"v3-{make.__name__}"
        if path.with_suffix(".json").exists():
            continue
        maker = Maker(path)
        make(maker)
        if "store" in vars(maker):
            maker.store.close()
        # Older roots would be most of the bytes.
        for root in sorted((path / "roots").iterdir())[2:]:
            root.unlink()
        reader = cairn_reader.Store(path)
        for step, content in maker.contents.items():
            names = reader.step(step).keys()
            content["leaves"] = dict(zip(names, content["leaves"], strict=True))
            found = found_by_reader(reader, step)
            content |= {name: found[name] for name in ("parent", "run", "statistics")}
        path.with_suffix(".json").write_text(json.dumps(maker.contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
