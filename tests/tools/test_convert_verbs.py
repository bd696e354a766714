"""kv-admin import and export with --rename, --rules and --dtype, compared with the Python package
and with torch."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import cairn
import cairn.convert
from tool_programs import assert_equal, into_store, peak_memory, run_interop

RULES = [
    cairn.convert.rearrange(r"\.wq$", (4, -1, 2), (0, 2, 1)),
    cairn.convert.concat(["gate$", "up"], "gate_up"),
    cairn.convert.stack(r"experts\.(\d+)\.w", "experts.w"),
    cairn.convert.permute(r"experts\.w", (0, 2, 1)),
    cairn.convert.split("qkv", ["q", "k", "v"], sizes=(6, 2, 2)),
]


def source_state():
    torch.manual_seed(1)
    quantized = torch.randn(300, 200).to(torch.float8_e4m3fn)
    return {
        "layer.wq": torch.randn(32, 16),
        "mlp.gate": torch.randn(5, 16),
        "mlp.up": torch.randn(7, 16),
        "qkv": torch.randn(10, 3),
        **{f"experts.{i}.w": torch.randn(60, 50) for i in range(11)},
        "fp8.weight": quantized,
        "fp8.weight_scale_inv": torch.rand(3, 2),
        "ids": torch.arange(5),
    }


@pytest.fixture
def rules_file(tmp_path):
    path = tmp_path / "rules.json"
    cairn.convert.save_rules(path, [cairn.convert.dequantize(torch.float32), *RULES])
    return path


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "in.safetensors"
    save_file(source_state(), path)
    return path


def converted(tmp_path, rules_file, dtype):
    """What the Python package reads by the same rules."""
    with cairn.open(into_store(tmp_path / "reference", source_state())) as store:
        return store.read(rename=cairn.convert.load_rules(rules_file), dtype=dtype, flat=True)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("suffix", ["safetensors", "pt", "dcp"])
def test_an_export_converts(admin, tmp_path, model_file, rules_file, dtype, suffix):
    want = converted(tmp_path, rules_file, dtype)
    words = ["--rules", rules_file, *(["--dtype", dtype] if dtype else [])]
    out = tmp_path / f"out.{suffix}"
    assert admin("import", tmp_path / "s", "--step", 1, model_file).status == 0

    run_interop("export", tmp_path / "s", out, *words, status=0)

    if suffix == "dcp":
        run_interop("import", tmp_path / "back", "--step", 1, out, status=0)
        with cairn.open(tmp_path / "back") as store:
            got = store.read(flat=True)
    else:
        got = load_file(out) if suffix == "safetensors" else torch.load(out, weights_only=True)
    assert_equal(got, want)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_an_import_converts(admin, tmp_path, model_file, rules_file, dtype):
    want = converted(tmp_path, rules_file, dtype)
    words = ["--rules", rules_file, *(["--dtype", dtype] if dtype else [])]

    admin("import", tmp_path / "s", "--step", 1, model_file, *words, status=0)

    with cairn.open(tmp_path / "s") as store:
        assert_equal(store.read(flat=True), want)


def test_a_model_directory_is_converted_on_its_way_in_and_out(admin, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text("{}")
    weights = {"old.w": torch.randn(6, 4), "ids": torch.arange(3)}
    save_file(weights, tmp_path / "in" / "model.safetensors", metadata={"format": "pt"})

    admin(
        *("import", tmp_path / "s", "--step", 1, tmp_path / "in", "--format", "hf"),
        *("--dtype", "bfloat16", "--tag", "new"), status=0,
    )  # fmt: skip
    finished = admin(
        *("export", f"{tmp_path / 's'}@new", tmp_path / "out", "--format", "hf"),
        *("--rename", "^old=new", "--dtype", "float32"), status=0,
    )  # fmt: skip

    assert "2 tensors" in finished.out and "config.json" in finished.out
    got = load_file(tmp_path / "out" / "model.safetensors")
    assert_equal(got, {"new.w": weights["old.w"].bfloat16().float(), "ids": weights["ids"]})
    assert (tmp_path / "out" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rename", "a"], "REGEX=TEXT"),
        (["--rename", "(=b"], "rule 1"),
        (["--dtype", "bfloat17"], "bfloat17"),
        (["--rename", "gate=up"], "same name"),
        (["--rules", "/nonexistent.json"], "opening the rules"),
    ],
)
def test_wrong_options_change_nothing(admin, tmp_path, model_file, words, message):
    store = tmp_path / "s"

    assert message in admin("import", store, "--step", 1, model_file, *words, status=2).err

    assert not store.exists()
    assert admin("import", store, "--step", 1, model_file).status == 0
    out = tmp_path / "out.safetensors"
    assert message in run_interop("export", store, out, *words, status=2).err
    assert not out.exists()


def test_since_cannot_be_combined_with_a_conversion(admin, tmp_path, model_file):
    assert admin("import", tmp_path / "s", "--step", 1, model_file).status == 0
    words = "export", tmp_path / "s", tmp_path / "o.safetensors", "--since", "1", "--rename", "a=b"
    assert "--since" in admin(*words, status=2).err


def test_an_export_of_a_large_stack_needs_little_memory(admin, tmp_path):
    state = {f"e.{i}.w": torch.full((1024, 4096), float(i)) for i in range(24)}  # 384 MiB
    into_store(tmp_path / "s", state)
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"stack": r"e\.(\d+)\.w", "to": "e"}]))

    words = [tmp_path / "s", tmp_path / "out.safetensors", "--rules", rules, "--dtype", "bfloat16"]
    peak = peak_memory("export", *words)

    assert peak < 300 << 20
    got = load_file(tmp_path / "out.safetensors")["e"]
    assert got.shape == (24, 1024, 4096)
    assert got[:, 5, 7].tolist() == list(range(24))
