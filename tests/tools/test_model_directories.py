"""kv-admin import and export with --format hf: directories of models, without the libraries that
open them (tests/integrations/test_hf_directories.py)."""

import json
import os
import signal
import subprocess

import pytest
import torch
from cairn_testing import wait_until
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cairn
from tool_programs import BIN_DIR, assert_equal, into_store, small_model

FILES = {
    "config.json": b'{"architectures": ["X"]}\n',
    "tokenizer.json": bytes(range(256)) * 5000,  # 1.2 MiB: kept as a tensor
    "merges.txt": b"",
    "added/template.jinja": b"{{ messages }}",
}


def write_model(folder, tensors=None, files=FILES, metadata=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    save_file(tensors or small_model(), folder / "model.safetensors", metadata or {"format": "pt"})
    return folder


def write_shards(folder, tensors, stem="model"):
    names = sorted(tensors)
    parts = names[::2], names[1::2]
    weight_map = {}
    for number, part in enumerate(parts, 1):
        name = f"{stem}-{number:05}-of-00002.safetensors"
        save_file({key: tensors[key] for key in part}, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


def contents(folder):
    """All files of a directory but the weights, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "safetensors" not in path.name
    }


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


def imported(admin, store, model, *options, step=1):
    return admin("import", store, "--step", step, model, "--format", "hf", *options, status=0)


def refused(admin, store, model):
    """The error of an import that must not create the store."""
    error = admin("import", store, "--step", 1, model, "--format", "hf", status=2).err
    assert not store.exists()
    return error


def exported(admin, store, out, *options):
    return admin("export", store, out, "--format", "hf", *options, status=0)


def test_a_directory_is_exported_as_it_was_imported(admin, dump, model, tmp_path):
    (model / ".gitattributes").write_text("hidden files are not part of the model")
    (model / "pytorch_model.bin").write_bytes(b"weights in another format")
    finished = imported(admin, tmp_path / "s", model)
    assert "pytorch_model.bin" in finished.err and ".git" not in finished.err

    assert not exported(admin, f"{tmp_path}/s@1", tmp_path / "new" / "out").err

    assert contents(tmp_path / "new" / "out") == FILES
    weights = tmp_path / "new" / "out" / "model.safetensors"
    assert_equal(load_file(weights), small_model())
    with safe_open(weights, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    rows = {row["fqn"] for row in dump("keys", tmp_path / "s", "--json").json()["keys"]}
    assert {"__files__.config.json", "__files__.added/template.jinja", "__weights__"} < rows


def test_other_metadata_of_the_weights_is_kept(admin, tmp_path):
    metadata = {"format": "pt", "quantization": "none"}
    imported(admin, tmp_path / "s", write_model(tmp_path / "m", metadata=metadata))
    exported(admin, tmp_path / "s", tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == metadata


def assert_aligned(path):
    """Readers map the file, and need elements at multiples of their size."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    for name, tensor in load_file(path).items():
        first = begin + header[name]["data_offsets"][0]
        assert tensor.numel() == 0 or first % tensor.element_size() == 0, name


def test_shards_with_an_index_in_and_out(admin, model, tmp_path):
    (model / "model.safetensors").unlink()
    write_shards(model, small_model())
    imported(admin, tmp_path / "s", model)

    exported(admin, tmp_path / "s", tmp_path / "out", "--shard-size", "8KiB")

    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    tensors = {}
    for name in sorted(set(index["weight_map"].values())):
        assert_aligned(tmp_path / "out" / name)
        shard = load_file(tmp_path / "out" / name)
        assert {key for key, file in index["weight_map"].items() if file == name} == shard.keys()
        tensors |= shard
    assert len(set(index["weight_map"].values())) > 1
    assert_equal(tensors, small_model())
    sizes = (tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert index["metadata"]["total_size"] == sum(sizes)
    assert contents(tmp_path / "out").keys() == FILES.keys()


def test_folders_are_parts_of_a_pipeline(admin, tmp_path):
    """The same name in two folders, one of them with shards, and weights at the top."""
    pipeline = tmp_path / "pipeline"
    pipeline.mkdir()
    (pipeline / "model_index.json").write_text("{}")
    for number, folder in enumerate(("unet", "text_encoder", "deep/vae")):
        (pipeline / folder).mkdir(parents=True)
        (pipeline / folder / "config.json").write_text(str(number))
        tensors = {"w": torch.full((3,), float(number)), "b.c": torch.arange(number + 1)}
        if number == 1:
            write_shards(pipeline / folder, tensors)
        else:
            save_file(tensors, pipeline / folder / "diffusion_pytorch_model.safetensors")
    save_file({"w": torch.ones(2)}, pipeline / "model.safetensors")
    imported(admin, tmp_path / "s", pipeline)

    exported(admin, tmp_path / "s", tmp_path / "out")

    assert contents(tmp_path / "out").keys() == {
        *("unet/config.json", "text_encoder/config.json", "deep/vae/config.json"),
        "model_index.json",
    }
    for number, name in enumerate(
        ("unet/diffusion_pytorch_model", "text_encoder/model", "deep/vae/diffusion_pytorch_model")
    ):
        expected = {"w": torch.full((3,), float(number)), "b.c": torch.arange(number + 1)}
        assert_equal(load_file(tmp_path / "out" / f"{name}.safetensors"), expected)
    assert_equal(load_file(tmp_path / "out" / "model.safetensors"), {"w": torch.ones(2)})


def test_what_does_not_belong_to_the_model_is_left_out(admin, model, tmp_path):
    imported(admin, tmp_path / "s", model, "--prefix", "model")
    with cairn.open(tmp_path / "s", mode="a") as store:
        state = store.read()
        store.save(2, {**state, "optimizer": {"m": torch.ones(5), "lr": 0.1}})

    finished = exported(admin, tmp_path / "s", tmp_path / "out")

    assert "1 tensor, 1 plain value left out" in finished.err
    assert_equal(load_file(tmp_path / "out" / "model.safetensors"), small_model())
    assert contents(tmp_path / "out") == FILES


def test_a_dtype_that_the_format_lacks_is_refused_before_anything_is_written(admin, tmp_path):
    into_store(tmp_path / "s", {"a": torch.ones(2), "z": torch.ones(2, dtype=torch.complex128)})
    error = admin("export", tmp_path / "s", tmp_path / "out" / "x.safetensors", status=2).err
    assert "cannot hold complex128" in error and "z" in error
    assert not (tmp_path / "out").exists()


def test_a_failed_export_leaves_nothing(admin, dump, model, tmp_path):
    store = tmp_path / "s"
    imported(admin, store, model)
    segment = max((store / "segments").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    segment.chmod(0o644)
    segment.write_bytes(data)

    admin("export", store, tmp_path / "out", "--format", "hf", status=2)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "s"]


def test_patterns_and_several_directories_are_refused(admin, model, tmp_path):
    imported(admin, tmp_path / "s", model)
    assert admin("export", tmp_path / "s", tmp_path / "o", "model", "--format", "hf").status == 2
    words = "import", tmp_path / "s", "--step", 2, model, model, "--format", "hf"
    assert admin(*words).status == 2


def test_files_of_absurd_sizes_and_names_are_refused(admin, model, tmp_path):
    with open(model / "huge.json", "wb") as file:
        file.truncate(1 << 40)  # sparse
    assert "huge.json" in refused(admin, tmp_path / "s", model)

    os.rename(model / "huge.json", model / "bad\nname")
    assert "name that cannot be kept" in refused(admin, tmp_path / "s", model)


def test_links_to_files_are_followed_and_pipes_left_out(admin, model, tmp_path):
    """As in the cache of Hugging Face libraries, whose directories consist of links."""
    links = tmp_path / "links"
    links.mkdir()
    for name in ("config.json", "model.safetensors"):
        (links / name).symlink_to(model / name)
    os.mkfifo(links / "pipe")
    (links / "loop").symlink_to(links)

    finished = imported(admin, tmp_path / "s", links)

    assert "pipe: it is not a regular file" in finished.err
    assert "loop: links to directories are not followed" in finished.err
    exported(admin, tmp_path / "s", tmp_path / "out")
    assert contents(tmp_path / "out") == {"config.json": FILES["config.json"]}


@pytest.mark.parametrize("replaces", [False, True])
def test_a_killed_export_leaves_the_old_directory_or_none(admin, tmp_path, replaces):
    tensors = {f"layer.{i}": torch.full((1 << 20,), float(i)) for i in range(16)}
    imported(admin, tmp_path / "s", write_model(tmp_path / "model", tensors))
    out = tmp_path / "to" / "out"
    out.parent.mkdir()
    if replaces:
        write_model(out)
    words = "export", tmp_path / "s", out, "--format", "hf", "--overwrite", "--shard-size", "8MB"
    process = subprocess.Popen([BIN_DIR / "kv-admin", *words], stdout=subprocess.DEVNULL)
    written = "out.*.tmp/*.safetensors"
    wait_until(lambda: process.poll() is not None or list(out.parent.glob(written)))
    process.kill()
    was_killed = process.wait() == -signal.SIGKILL

    if was_killed and replaces:
        assert_equal(load_file(out / "model.safetensors"), small_model())
    elif was_killed:
        assert not out.exists()
    # What remains has a temporary name, and does not disturb the next export.
    assert admin(*words).status == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()
