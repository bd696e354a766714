"""Adapters of peft: only their weights are saved, with a reference to the step of their base."""

import json
import shutil

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft
from hf_models import assert_same_directories, logits, make, run_admin

import cairn
import cairn.hf


def with_adapter(base, seed=1):
    """A model with an adapter whose weights are not those of a new adapter, which does nothing."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture
def stores(tmp_path):
    """A store with the base model, and one with its adapter; the adapted model."""
    cairn.hf.save_pretrained(make("llama"), f"{tmp_path}/base@10")
    model = with_adapter(cairn.hf.from_pretrained(f"{tmp_path}/base@10"))
    cairn.hf.save_pretrained(model, f"{tmp_path}/adapters@1")
    return tmp_path, model


def test_an_adapter_is_saved_without_its_base_and_loaded_with_it(stores):
    folder, model = stores
    with cairn.open(folder / "adapters") as store:
        tensors = [key for key, info in store.keys().items() if info.dtype is not None]
        assert tensors and all("lora_" in key for key in tensors)
        base = json.loads(store.read("__files__", 1)["__files__"]["cairn_base.json"])
    assert base["step"] == 10 and base["store"] == str(folder / "base") and base["identity"]

    loaded = cairn.hf.from_pretrained(f"{folder}/adapters@1")

    assert isinstance(loaded, peft.PeftModel)
    assert torch.equal(logits(loaded), logits(model))
    assert not torch.equal(logits(loaded), logits(make("llama")))


def test_peft_opens_an_export_and_cairn_a_directory_of_peft(stores):
    folder, model = stores
    run_admin("export", f"{folder}/adapters@1", folder / "out", "--format", "hf")
    opened = peft.PeftModel.from_pretrained(make("llama"), folder / "out")
    assert torch.equal(logits(opened), logits(model))

    model.save_pretrained(folder / "own")
    run_admin("import", f"{folder}/imported", "--step", 1, folder / "own", "--format", "hf")
    with pytest.raises(cairn.Invalid, match="does not record its base"):
        cairn.hf.from_pretrained(f"{folder}/imported")
    for base in (f"{folder}/base@10", make("llama")):
        loaded = cairn.hf.from_pretrained(f"{folder}/imported", base=base)
        assert torch.equal(logits(loaded), logits(model))

    run_admin("export", f"{folder}/imported", folder / "again", "--format", "hf")
    assert_same_directories(folder / "own", folder / "again")


def test_a_base_of_the_same_store_is_named_by_its_number(stores):
    folder, model = stores
    cairn.hf.save_pretrained(model, f"{folder}/base@1", base=10)
    with cairn.open(folder / "base", mode="a") as store:
        cairn.hf.save_pretrained(model, store, 2, base=10)

    for options in ({}, {"base": 10}):
        for step in (1, 2):
            loaded = cairn.hf.from_pretrained(f"{folder}/base@{step}", **options)
            assert torch.equal(logits(loaded), logits(model))
    with pytest.raises(cairn.NotFound):
        cairn.hf.save_pretrained(model, f"{folder}/base@3", base=11)


def test_an_exported_adapter_still_has_its_reference(stores):
    folder, model = stores
    run_admin("export", f"{folder}/adapters@1", folder / "out", "--format", "hf")
    run_admin("import", f"{folder}/imported", "--step", 7, folder / "out", "--format", "hf")
    assert torch.equal(logits(cairn.hf.from_pretrained(f"{folder}/imported")), logits(model))


def test_another_base_is_refused(stores):
    folder, _ = stores
    other = make("llama")
    with torch.no_grad():
        other.model.embed_tokens.weight.add_(1)
    cairn.hf.save_pretrained(other, f"{folder}/base@11")

    with pytest.raises(cairn.Conflict, match="not the base of this adapter"):
        cairn.hf.from_pretrained(f"{folder}/adapters", base=f"{folder}/base@11")
    with pytest.raises(cairn.Conflict, match="not the base of this adapter"):
        loaded = cairn.hf.from_pretrained(f"{folder}/base@11")
        cairn.hf.from_pretrained(f"{folder}/adapters", base=loaded)

    cairn.hf.save_pretrained(other, f"{folder}/base@10", overwrite=True)
    with pytest.raises(cairn.Conflict, match="overwritten"):
        cairn.hf.from_pretrained(f"{folder}/adapters")
    with cairn.open(folder / "base", mode="a") as store:
        store.delete(10)
    with pytest.raises(cairn.NotFound):
        cairn.hf.from_pretrained(f"{folder}/adapters")


def test_a_copy_of_the_base_is_the_base(stores):
    folder, model = stores
    run_admin("push", f"{folder}/base@10", folder / "copy")
    shutil.rmtree(folder / "base")
    with pytest.raises(cairn.NotFound):
        cairn.hf.from_pretrained(f"{folder}/adapters")
    loaded = cairn.hf.from_pretrained(f"{folder}/adapters", base=f"{folder}/copy@10")
    assert torch.equal(logits(loaded), logits(model))


def test_a_base_that_is_not_in_a_store_must_be_named(tmp_path):
    cairn.hf.save_pretrained(make("llama"), f"{tmp_path}/base@10")
    model = with_adapter(make("llama"))
    with pytest.raises(cairn.Invalid, match="base='STORE@STEP'"):
        cairn.hf.save_pretrained(model, f"{tmp_path}/adapters@1")
    cairn.hf.save_pretrained(model, f"{tmp_path}/adapters@1", base=f"{tmp_path}/base")
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/adapters@1", is_trainable=True)
    assert torch.equal(logits(loaded.eval()), logits(model))
    assert any(parameter.requires_grad for parameter in loaded.parameters())
