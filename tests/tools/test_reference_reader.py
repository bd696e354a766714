"""The reference reader, which was written from docs/format/ alone, and Cairn agree bit for bit on
stores of every feature, whose tables are inside the subset of RocksDB's that docs/format/sst.md
describes; and it finds each changed bit of a small store. test_golden_stores.py has the golden
ones."""

import collections
import contextlib
import json
import math
import pathlib
import pickle
import random
import shutil
import struct
import sys
from types import SimpleNamespace

import numpy
import pytest
import safetensors
import torch

import cairn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools" / "reference_reader"))
import cairn_reader  # noqa: E402
from cairn_reader.__main__ import main as run_reader  # noqa: E402
from cairn_reader.safetensors import NAMES as NAMES_OF_SAFETENSORS  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"


def assert_same(found, expected, where="state"):
    """A state of the reader is equal to one of Cairn, in which tensors are those of torch."""
    if isinstance(expected, torch.Tensor):
        flat = expected.detach().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        assert found.shape == tuple(expected.shape), where
        assert found.tobytes() == content, where
    elif isinstance(expected, (numpy.ndarray, numpy.generic)):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), where
        assert found.tobytes() == expected.tobytes(), where
    elif isinstance(expected, dict):
        assert type(found) is type(expected), where
        assert [repr(key) for key in found] == [repr(key) for key in expected], where
        for own, (key, value) in zip(found.values(), expected.items(), strict=True):
            assert_same(own, value, f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert isinstance(found, list if isinstance(expected, list) else tuple), where
        assert len(found) == len(expected), where
        for i, (own, value) in enumerate(zip(found, expected, strict=True)):
            assert_same(own, value, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert struct.pack("<d", found) == struct.pack("<d", expected), where
    elif isinstance(expected, complex):
        assert repr(found) == repr(expected), where
    elif isinstance(found, cairn_reader.Pickle):
        assert pickle.loads(found) == expected, where
    else:
        assert type(found) is type(expected) and found == expected, where


def assert_reader_agrees(path, dump, allow_pickle=False):
    """Steps, keys and contents are those that Cairn reads, and nothing is damaged."""
    store = cairn_reader.Store(path)
    assert [str(error) for error in store.verify()] == []
    shown = dump("steps", path, "--json", status=0).json()["steps"]
    assert [row["step"] for row in shown] == list(store.entries)
    with cairn.open(path, "r") as opened:
        for row in shown:
            step = store.step(row["step"])
            entry = step.summary
            assert (
                entry.generation,
                entry.tensor_count,
                entry.value_count,
                entry.logical_bytes,
            ) == (row["generation"], row["tensors"], row["values"], row["logical_bytes"])
            assert sorted(step.keys()) == sorted(opened.keys(step=row["step"]))
            expected = opened.read(step=row["step"], allow_pickle=allow_pickle)
            assert_same(step.state(), expected, f"step {row['step']}")
            names = opened.records(row["step"])
            assert step.applications() == {x: opened.record(row["step"], x) for x in names}
    return store


def every_dtype():
    """A tensor of random bytes of each dtype of torch that Cairn stores, and arrays of numpy."""
    generator = numpy.random.default_rng(1)
    state = {}
    for name, _ in cairn_reader.DTYPES[1:]:
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        size = torch.empty(0, dtype=dtype).element_size()
        raw = generator.integers(0, 2 if name == "bool" else 256, 6 * size, dtype=numpy.uint8)
        state[name] = torch.from_numpy(raw).view(dtype).reshape(2, 3)
    state["numpy"] = [
        numpy.arange(6).reshape(2, 3).astype(kind) for kind in ("<f4", ">i8", "?", "<c16")
    ]
    state["scalars"] = [numpy.float32(1.5), numpy.uint8(3), numpy.bool_(True)]
    return state


def containers():
    shared = torch.arange(100, dtype=torch.float32)
    state = {
        "ordered": collections.OrderedDict(b=1, a=torch.ones(())),
        "counter": collections.Counter("hello"),
        "list": [1, [], (), {}, (torch.zeros(0, 4), "x")],
        "size": torch.Size([2, 3]),
        3: "int",
        None: "none",
        1.5: "float",
        True: "bool",
        -(2**70): "big",
        "values": [None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64, -(2**200), 2**20_000,
                   1.5, -0.0, math.inf,
                   complex(1, -0.0), "", "text \U0001f600", "\ud800", b"", b"bytes\0"],
        "long": [b"x" * 4096, b"y" * 300_000, "\ud800" * 3_000, -(2**40_000)],
        "tied": {"all": shared, "again": shared, "part": shared[10:20],
                 "strided": shared.view(10, 10).t()},
        "views": [torch.arange(50)[:30], torch.arange(5).expand(3, 5)],
        "strides": {"all": shared[50:], "one": shared.as_strided((5, 1), (2, 2**62))},
        "deep": {},
        "keys": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1), "": 1}, "a.b.c": 2, "x\\y": 3,
                 1: 4, "1": torch.ones(2), False: 5, "False": 6, None: 7, "None": 8, 2.5: 9,
                 "2.5": 10, "": {"": 11}, "\ud800": 12, "a\\.b": 13},
    }  # fmt: skip
    overlapping = torch.arange(60)
    state["hidden"] = {"a": overlapping[:40], "b": overlapping[20:]}
    level = state["deep"]
    for _ in range(100):
        level["x"] = {}
        level = level["x"]
    return state


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """A store of many steps, each with other features, and the names of the steps."""
    path = tmp_path_factory.mktemp("reader") / "store"
    random_numbers = numpy.random.default_rng(2)
    with cairn.open(path, "a", grace=0) as store:
        store.save(1, every_dtype())
        tuning = cairn.SaveTuning(records={"größe": bytes(range(256)) * 500, "empty": b""})
        store.save(2, containers(), tags=["containers"], metrics={"loss": 0.5}, note="a note",
                   tuning=tuning)  # fmt: skip
        store.save(3, {"object": pathlib.PurePosixPath("a"), "x": torch.ones(3)}, allow_pickle=True)
        # Many keys that are long: several partitions of the index.
        store.save(4, {"n" * 1_500: {f"{i:05}": i for i in range(3_000)}, "w": torch.ones(2)})
        # Deltas relative to a version, of elements of each size, small and large changes.
        state = {
            name: torch.from_numpy(random_numbers.standard_normal(60_000)).to(dtype)
            for name, dtype in (("f8", torch.float64), ("f4", torch.float32),
                                ("f2", torch.bfloat16),
                                ("c16", torch.complex128), ("i8", torch.int8),
                                ("c2", torch.complex32))
        }  # fmt: skip
        state["u1"] = torch.from_numpy(random_numbers.integers(0, 256, 200_001, dtype=numpy.uint8))
        for step in range(10, 16):
            for tensor in state.values():
                count = int(len(tensor) * random_numbers.choice([0.001, 0.05, 0.5]))
                places = torch.from_numpy(random_numbers.integers(0, len(tensor), count))
                tensor[places] += 1 if not tensor.is_floating_point() else tensor[places] * 2**-7
            store.save(step, state, tuning=cairn.SaveTuning(deltas=8, compress=step % 2 == 0))
        # Chunks of several extents: one page of a tensor changes.
        paged = {"p": torch.zeros(5, 70_000), "small": torch.zeros(100)}
        for step in range(20, 24):
            paged["p"][1, 1000 * (step - 20)] += step
            store.save(step, paged, tuning=cairn.SaveTuning(chunk_bytes=1 << 20))
        compressible = {"z": torch.arange(100_000) // 7, "r": torch.randn(30_000)}
        store.save(30, compressible, tuning=cairn.SaveTuning(compress=True, chunk_bytes=1 << 16))
        # More than 16 segments, more than 8 tables.
        many = {"size": 0}
        for step in range(40, 62):
            many[f"t{step}"] = torch.full((50, step), step)
            store.save(step, many)
        store.edit(61, into=62, drop="t4*", rename={"t50": "renamed"})
        store.edit(2, into=63, graft_from=30, graft="z", under="new")
        # Pages of steps.
        for step in range(100, 180):
            store.save(step, {"w": torch.full((4,), step), "i": step})
        store.delete(*range(105, 150, 2))
    return path


def test_reads_every_feature(features, dump):
    store = assert_reader_agrees(features, dump, allow_pickle=True)
    assert store.root.pages and store.step(61).entry.usage_in_tables
    assert store.step("containers").summary.note == "a note"
    assert len(store.step(2).applications()) == len(store.step(63).applications()) == 2


def test_agrees_on_the_latest_step(tmp_path):
    def latest():
        return cairn_reader.Store(tmp_path / "s").latest()

    with cairn.open(tmp_path / "s", mode="a") as store:
        for step in (10, 20, 30):
            store.save(step, {"n": step})
        store.edit(10, into=29)
        store.load({"n": 0}, step=30)
        store.save(5, {"n": 5})  # below its parent
        assert latest() == store.latest() == 30
        store.edit(30, into=30, overwrite=True, records={"a": b""})
        assert latest() == store.latest() == 30
        store.delete(30)
        assert latest() == store.latest() == 20  # not 29, which is made of 10
        store.delete(10, 20, 29)
        assert latest() == store.latest() == 5


def test_a_step_with_the_tag_latest_is_the_one_of_this_name(tmp_path):
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"n": 1}, tags=["latest"])
        store.save(2, {"n": 2})
    store = cairn_reader.Store(tmp_path / "s")
    assert [store.step(*name).read("n") for name in (["latest"], [])] == [1, 2]


def test_reads_a_compacted_store(features, dump, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(features, path)
    with cairn.open(path, "a", grace=0) as store:
        store.delete(40, 41, 42, 20, 10)
        store.compact(max_dead=0, fold=True, compress=True)
    assert_reader_agrees(path, dump, allow_pickle=True)


def test_ignores_further_bytes_of_a_usage(features):
    store = cairn_reader.Store(features)
    entry = store.entries[61]
    step = cairn_reader.Step(store, entry)
    (key, data), *_ = step.scan(cairn_reader.USAGE)
    step.records[key] = data + b"newer"
    uses = {int.from_bytes(k[1:], "big"): struct.unpack_from("<Q", v)[0]
            for k, v in step.scan(cairn_reader.USAGE)}  # fmt: skip
    cairn_reader.Verification.verify_uses(SimpleNamespace(segments={}), step, uses)


def test_slices_are_parts_of_tensors(features):
    generator = random.Random(3)
    store = cairn_reader.Store(features)
    for number, key in (
        (23, "p"),
        (30, "z"),
        (15, "u1"),
        (2, "tied.strided"),
        (2, "hidden.b"),
        (2, "list.4.0"),
    ):
        step = store.step(number)
        complete = step.read(key)
        for _ in range(20):
            index = tuple(
                slice(*sorted(generator.randint(0, size) for _ in "ab")) for size in complete.shape
            )
            assert step.read(key, index).tobytes() == complete[index].tobytes(), (key, index)


def test_ties_share_memory(features):
    state = cairn_reader.Store(features).step("containers").state()
    assert numpy.shares_memory(state["tied"]["all"], state["tied"]["strided"])
    assert numpy.shares_memory(state["hidden"]["a"], state["hidden"]["b"])


def test_command_line(features, capsys):
    def run(*words, status=0):
        assert run_reader([*map(str, words), "--json"]) == status
        return json.loads(capsys.readouterr().out)

    def text(*words):
        run_reader([*map(str, words)])
        return "".join(capsys.readouterr())

    steps = run(features)
    assert [step["step"] for step in steps][:4] == [1, 2, 3, 4]
    assert steps[1]["tags"] == ["containers"] and steps[1]["note"] == "a note"
    key = run(f"{features}@23")[0]
    assert (key["key"], key["dtype_name"], key["shape"]) == ("p", "float32", [5, 70_000])
    part = run(f"{features}@23", "--key", "p", "--slice", "1:2,2000:2001")
    assert part == {"dtype": "float32", "shape": [1, 1], "hex": struct.pack("<f", 22).hex()}
    values = {row["key"]: row.get("value") for row in run(f"{features}@2")}
    assert values["keys.\ud800"] == "12" and values["values.8"] == str(-(2**200))
    assert run(f"{features}@2", "--key", "values.9") == {"type": "int", "value": hex(2**20_000)}
    assert run(features, "--verify") == {"steps": len(steps), "errors": []}
    assert text(f"{features}@77") == "cairn_reader: there is no step '77'\n"
    assert "s3://bucket/store: this reader" in text("s3://bucket/store@4")
    assert text(f"{features}@2", "--key", "values.9") == f"{hex(2**20_000)}\n"
    assert text(features, "--verify").endswith(f"{len(steps)} steps, 0 errors\n")
    _, first, second, *_ = text(features).splitlines()
    assert first.split()[0] == "1" and second.endswith("containers  a note")
    rows = [line.split(maxsplit=2) for line in text(f"{features}@23").splitlines()]
    assert rows[:2] == [["KEY", "TYPE", "SHAPE OR VALUE"], ["p", "float32", "[5, 70000]"]]
    assert "keys.\\ud800" in text(f"{features}@2")  # no character that a terminal may obey


def test_writes_safetensors(tmp_path, admin):
    """The file has the tensors that kv-admin writes, bit for bit, of every dtype of the format."""
    dtypes = [
        getattr(torch, name) for name in NAMES_OF_SAFETENSORS if name != "float4_e2m1fn_x2"
    ]  # fmt: skip
    tensors = {f"m.{dtype}": torch.arange(6).to(dtype).reshape(2, 3) for dtype in dtypes}
    tensors["m.empty"], tensors["m.number"] = torch.zeros(0, 3), torch.tensor(2.5)
    tensors["m.four"] = torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensors["m.part"] = tensors["m.torch.float32"].T  # memory of another tensor
    path, own, other = tmp_path / "s", tmp_path / "own", tmp_path / "other.safetensors"
    with cairn.open(path, "a") as store:
        store.save(1, tensors | {"m.value": 3, "rest": torch.zeros(4, dtype=torch.complex128)})
    own.write_text("an older file")
    words = [f"{path}@1", "--safetensors", str(own)]
    assert run_reader(words) == 1 and own.read_text() == "an older file"  # complex128
    assert run_reader([*words, "--prefix", "none"]) == 1
    assert run_reader([*words, "--prefix", "m."]) == 0
    admin("export", f"{path}@1", other, "m", status=0)
    found, expected = (safetensors.deserialize(file.read_bytes()) for file in (own, other))
    assert {f"m.{name}": tensor for name, tensor in found} == dict(expected)
    assert len(found) == len(tensors)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.safetensors", "own", "s"]


# ---- Damage and hostile input


def small_store(path, elements=20_000):
    """Three steps with values, ties, deltas, compression and, of many elements, several extents."""
    tensor = torch.arange(elements, dtype=torch.float32)
    state = {"w": tensor, "half": tensor[:100], "v": [1, "text"], "c": torch.zeros(3_000)}
    with cairn.open(path, "a") as store:
        store.save(1, state, tags=["first"])
        tensor[5] += 1
        store.save(2, state, tuning=cairn.SaveTuning(deltas=True), metrics={"loss": 1.0})
        tensor[-1_000] += 1
        store.save(3, state, tuning=cairn.SaveTuning(compress=True))


# Correctness never depends on these (README.md, How damage is detected).
HARMLESS = ("hint", "leases/")


def is_damaged(path):
    """Whether the reference reader finds damage."""
    try:
        return bool(cairn_reader.Store(path).verify())
    except cairn_reader.FormatError:
        return True


def undetected(path, places, is_damaged=is_damaged):
    """The places (name, byte, bit) at which a changed bit is not found."""
    assert not is_damaged(path)
    missed = []
    for name, at, bit in places:
        content = (path / name).read_bytes()
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        (path / name).write_bytes(changed)
        if not is_damaged(path):
            missed.append((name, at, bit))
        (path / name).write_bytes(content)
    return missed


def places_to_change(path):
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    return [
        (name, at) for name in names if not name.startswith(HARMLESS)
        for at in range((path / name).stat().st_size)
    ]  # fmt: skip


def test_finds_changed_bits(tmp_path):
    path = tmp_path / "store"
    small_store(path)
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    places = places_to_change(path)
    # Most bytes are payload and padding of segments, so others are chosen more often.
    others = [place for place in places if not place[0].startswith("segments/")]
    chosen = generator.sample(places, 150) + generator.sample(others, 350)
    changes = [(name, at, generator.randrange(8)) for name, at in chosen]
    assert undetected(path, changes) == [], f"seed {seed}"


def test_finds_a_changed_bit_in_each_byte_of_a_table():
    content = next(GOLDEN.glob("*/tables/*.sst")).read_bytes()
    for i in range(len(content)):
        damaged = bytearray(content)
        damaged[i] ^= 1 << i % 8
        with pytest.raises(cairn_reader.FormatError), cairn_reader.within("table"):
            cairn_reader.read_table(bytes(damaged))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_finds_a_changed_bit_in_each_byte(tmp_path):
    path = tmp_path / "store"
    small_store(path, elements=1_500)
    generator = random.Random(4)
    changes = [(name, at, generator.randrange(8)) for name, at in places_to_change(path)]
    assert undetected(path, changes) == []


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_cairn_finds_a_changed_bit_in_each_byte(tmp_path, dump):
    path = tmp_path / "store"
    small_store(path, elements=1_500)
    # Cairn reads older roots only in a rebuild: a damaged predecessor counts as the right one.
    older = sorted(f"roots/{root.name}" for root in (path / "roots").iterdir())[1:]
    generator = random.Random(5)
    changes = [(name, at, generator.randrange(8)) for name, at in places_to_change(path)
               if name not in older]  # fmt: skip
    assert undetected(path, changes, lambda path: dump("verify", path).status != 0) == []


def test_unknown_kinds_of_digests_are_refused_by_name(tmp_path):
    path = tmp_path / "store"
    small_store(path)
    root, segment = (min((path / name).iterdir()) for name in ("roots", "segments"))
    for file, kind_at, covered in ((segment, -68, slice(-80, -8)), (root, 5, slice(0, -8))):
        content = bytearray(file.read_bytes())
        content[kind_at] = 9
        content[-8:] = cairn_reader.digest64(content[covered]).to_bytes(8, "little")
        file.write_bytes(content)
        with pytest.raises(cairn_reader.FormatError, match="kind 9"):
            for error in cairn_reader.Store(path).verify():
                raise error
    table = struct.pack("<7H2xiB3x", 14, 5, 0, 0, 0, 0, 4, 16, 9)  # with its vtable
    with pytest.raises(cairn_reader.FormatError, match="kind 9"):
        cairn_reader.FlatBuffer(table).table(16, "TableRef")


def test_notices_a_lost_newest_root(tmp_path):
    path = tmp_path / "store"
    small_store(path)
    min((path / "roots").iterdir()).unlink()  # the highest number is the lowest name
    with pytest.raises(cairn_reader.FormatError, match="the newest root is lost"):
        cairn_reader.Store(path)
    (path / "hint").unlink()
    cairn_reader.Store(path)


def test_an_interrupted_rebuild_is_noticed(tmp_path, admin):
    path = tmp_path / "store"
    small_store(path)
    newest = min((path / "roots").iterdir())
    kept = newest.read_bytes()
    newest.write_bytes(kept[:-1])
    admin("rebuild", path, status=0)
    newest.write_bytes(kept)
    cairn_reader.Store(path)
    min((path / "roots").iterdir()).unlink()  # the second root of the rebuild
    (path / "hint").unlink()
    with pytest.raises(cairn_reader.FormatError, match="interrupted rebuild"):
        cairn_reader.Store(path)
    with pytest.raises(cairn.Corrupt, match="run the rebuild again"):
        cairn.open(path, "r").steps()


def mutations(data, generator, count):
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(changed))
            changed[at : at + 4] = generator.choice(
                [b"\0", b"\xff" * 4, bytes([generator.randrange(256)]), b"\xff\xff\xff\x7f"]
            )
        yield bytes(changed[: generator.choice([len(changed), generator.randrange(len(changed))])])


def test_hostile_records_and_deltas_raise_only_format_errors(features):
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    store = cairn_reader.Store(features)
    for number in (2, 15, 61):
        step = store.step(number)
        records = [(kind, data) for column, kind in (
            (cairn_reader.STEPS, "StepSummary"), (cairn_reader.TENSORS, "TensorRecord"),
            (cairn_reader.CHUNKS, "ChunkRecord"), (cairn_reader.VALUES, "ValueRecord"),
            (cairn_reader.STRUCTURES, "StructureRecord"), (cairn_reader.SEGMENTS, "SegmentRecord"),
        ) for _, data in list(step.scan(column))[:5]]  # fmt: skip
        for kind, data in records:
            for changed in mutations(data, generator, 50):
                with contextlib.suppress(cairn_reader.FormatError):
                    with cairn_reader.within(f"seed {seed}"):
                        cairn_reader.parse(changed, kind)
    step = store.step(15)
    for key in ("u1", "f4"):
        for _, chunk in step.chunks(step.tensor_record(key)):
            base = bytes(chunk.nbytes)
            for delta in chunk.deltas:
                for changed in mutations(step.extent_bytes(delta), generator, 30):
                    with contextlib.suppress(cairn_reader.FormatError):
                        with cairn_reader.within(f"seed {seed}"):
                            cairn_reader.apply_delta(changed, base)


def step_with(store, number, key, data):
    """A step with another record, and with the digest of its structure if it is that."""
    step = cairn_reader.Step(store, store.entries[number])
    step.records[key] = data
    if key == cairn_reader.STRUCTURES:
        structure = cairn_reader.tree_digest(data)
        step.summary = SimpleNamespace(**{**vars(step.summary), "structure": structure})
    return step


def read_everything(step):
    """Calls all that interprets records, and continues after a FormatError."""
    with contextlib.suppress(cairn_reader.FormatError):
        step.keys()
    with contextlib.suppress(cairn_reader.FormatError):
        step.applications()
    for column, read in ((cairn_reader.TENSORS, step.tensor), (cairn_reader.VALUES, step.value)):
        for key, _ in step.scan(column):
            with contextlib.suppress(cairn_reader.FormatError):
                read(key[1:-1].decode(*cairn_reader.UTF8))


def test_hostile_records_are_read_with_only_format_errors(tmp_path):
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    shared = torch.arange(20)
    state = {"tied": {"all": shared, "part": shared[5:15], "view": shared.view(4, 5).t(),
                      "one": shared.as_strided((5, 1), (2, 2**62))},
             "values": [None, True, 3, 2**70, 1.5, 2j, "text", b"bytes"], "none": torch.ones(0, 3),
             "a": {"b": (torch.ones(2, 3), {})}, "a.b": {"0": 1}}  # fmt: skip
    with cairn.open(tmp_path, "a") as opened:
        opened.save(1, state, tuning=cairn.SaveTuning(records={"r": b"12"}))
    store = cairn_reader.Store(tmp_path)
    for column in (b"\1", b"\2", b"\3", b"\4", b"\x40", b"\xfd"):
        for key, data in list(store.step().scan(column)):
            for changed in mutations(data, generator, 60):
                try:
                    read_everything(step_with(store, 1, key, changed))
                except Exception as error:
                    raise AssertionError(f"seed {seed}, {key!r}: {changed.hex()}") from error


def test_memory_is_allocated_only_for_bytes_that_exist(features, monkeypatch):
    def change(record):
        record.sizes = [2**45]
        record.extent = record.extent._replace(length_bytes=2**47)

    step = cairn_reader.Store(features).step(23)
    record = step.tensor_record("small")
    record.shape, record.nbytes = [2**45], 2**47
    monkeypatch.setattr(step, "tensor_record", lambda name: record)
    change_record(monkeypatch, "ChunkRecord", change)
    with pytest.raises(cairn_reader.FormatError, match="an extent is outside"):
        step.tensor("small")


def change_record(monkeypatch, changed, change):
    parse = cairn_reader.parse

    def parse_changed(data, kind):
        record = parse(data, kind)
        if kind == changed:
            change(record)
        return record

    monkeypatch.setattr(cairn_reader, "parse", parse_changed)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda record: record.keys.__setitem__(2, record.keys[1]), "two leaves are"),
        (lambda record: setattr(record, "forms", b""), "different lengths"),
    ],
)
def test_a_structure_has_different_names_and_complete_forms(
    tmp_path, monkeypatch, change, message
):
    with cairn.open(tmp_path, "a") as opened:
        opened.save(1, {"a": 1, "b": 2})
    step = cairn_reader.Store(tmp_path).step()
    change_record(monkeypatch, "StructureRecord", change)
    with pytest.raises(cairn_reader.FormatError, match=message):
        step.keys()


def test_a_file_that_cannot_be_opened_is_a_format_error(tmp_path):
    (tmp_path / "CAIRN").mkdir()
    with pytest.raises(cairn_reader.FormatError, match="CAIRN: .*directory"):
        cairn_reader.Store(tmp_path)


def test_a_missing_predecessor_is_damage(features, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(features, path)
    newest = cairn_reader.Store(path).root.number
    (path / "roots" / f"{2**64 - newest:016x}.root").unlink()
    with pytest.raises(cairn_reader.FormatError, match="does not exist"):
        cairn_reader.Store(path)
