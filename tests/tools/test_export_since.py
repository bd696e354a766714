"""`kv-admin export --since`: the older step and the file are the newer step."""

import json

import pytest
import torch
from safetensors import safe_open

import cairn
from tool_programs import assert_equal, into_store, run_program


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """A store with steps 1 and 2, and their states."""
    generator = torch.Generator().manual_seed(3)
    first = {
        "model": {
            "weight": torch.randn(3000, 2000, generator=generator).to(torch.bfloat16),
            "frozen": torch.arange(1000),
            "dense": torch.randn(500, generator=generator),
            "reshaped": torch.zeros(4, 5),
            "removed": torch.ones(3),
            "integers": torch.arange(100_000),
        },
        "lr": 0.1,
    }
    first["model"]["tied"] = first["model"]["weight"]
    second = {"model": {name: t.clone() for name, t in first["model"].items()}, "lr": 0.2}
    changed = torch.rand(3000, 2000, generator=generator) < 0.01
    second["model"]["weight"][changed] *= 2
    second["model"]["tied"] = second["model"]["weight"]
    second["model"]["dense"] += 1
    second["model"]["reshaped"] = torch.ones(5, 4)
    second["model"]["integers"][[0, 7, 99_999]] = -1
    second["model"]["new"] = torch.zeros(2, dtype=torch.float64)
    del second["model"]["removed"]
    path = tmp_path_factory.mktemp("since") / "store"
    with cairn.open(path, mode="a") as store:
        store.save(1, first)
        store.save(2, second, tags=["newest"], tuning=cairn.SaveTuning(deltas=True))
    return path, flat(first), flat(second)


def flat(state):
    return {f"model.{name}": tensor for name, tensor in state["model"].items()}


def update(state, file):
    """Applies what docs/import-export.md describes."""
    state = {name: tensor.clone() for name, tensor in state.items()}
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
        sparse = json.loads(metadata["cairn.sparse"])
        parts = {f"{name}.{part}" for name in sparse for part in ("indices", "values")}
        for name, shape in sparse.items():
            assert list(state[name].shape) == shape
            indices = opened.get_tensor(f"{name}.indices")
            assert indices.dtype == torch.int32 and bool((indices[1:] > indices[:-1]).all())
            state[name].view(-1)[indices.long()] = opened.get_tensor(f"{name}.values")
        for name in set(opened.keys()) - parts:
            state[name] = opened.get_tensor(name)
        for name in json.loads(metadata["cairn.removed"]):
            del state[name]
    return state, metadata


@pytest.mark.parametrize("options", [[], ["--sparse"]])
def test_the_older_step_and_the_file_are_the_newer_step(steps, tmp_path, options):
    path, first, second = steps
    file = tmp_path / "update.safetensors"
    words = "export", f"{path}@newest", file, "--since", "1", *options
    done = run_program("kv-admin", *words, status=0)
    assert "changed since step 1: 6 tensors" in done.out and "1 removed" in done.out
    updated, metadata = update(first, file)
    assert_equal(updated, second)
    assert (metadata["cairn.since"], metadata["cairn.step"]) == ("1", "2")
    with safe_open(file, "pt") as opened:
        assert "model.frozen" not in opened.keys()  # noqa: SIM118
        assert ("model.weight" in opened.keys()) == (not options)  # noqa: SIM118
        assert "model.dense" in opened.keys()  # noqa: SIM118  # all of its elements changed
    assert [entry.name for entry in tmp_path.iterdir()] == ["update.safetensors"]


def test_nothing_changed_is_a_file_without_tensors(steps, tmp_path):
    path, first, _ = steps
    file = tmp_path / "u.safetensors"
    words = "export", f"{path}@1", file, "--since", "1", "--sparse"
    assert "0 tensors" in run_program("kv-admin", *words, status=0).out
    assert_equal(update(first, file)[0], first)


def test_what_cannot_be_done_is_refused(steps, tmp_path):
    path, _, _ = steps
    file = tmp_path / "u.safetensors"
    assert "--since" in run_program("kv-admin", "export", path, file, "--sparse").err
    words = "export", path, tmp_path / "folder", "--since", "1"
    assert "NAME.safetensors" in run_program("kv-admin", *words, status=2).err
    (tmp_path / "s@2").mkdir()
    store = into_store(tmp_path / "s", {"w": torch.ones(3)})
    for step in ("7", "none", f"{path}@1"):
        run_program("kv-admin", "export", path, file, "--since", step, status=2)
    refused = run_program("kv-admin", "export", store, file, "--since", "tag", status=2)
    assert "tag" in refused.err
    (tmp_path / "s@tag").mkdir()  # takes the name of the step
    refused = run_program("kv-admin", "export", store, file, "--since", "tag", status=2)
    assert "neither a step nor a tag of this store" in refused.err
    assert not file.exists()


def test_tensors_that_became_values_and_names_that_are_taken(tmp_path):
    first = {"a": torch.arange(10_000), "b": torch.arange(10_000), "a.values": torch.zeros(3)}
    second = {"a": first["a"].clone(), "b": 7, "a.values": torch.ones(3)}
    second["a"][5] = -1
    store, file = into_store(tmp_path / "store", first, second), tmp_path / "u.safetensors"
    run_program("kv-admin", "export", store, file, "--since", "1", "--sparse", status=0)
    del second["b"]
    assert_equal(update(first, file)[0], second)
