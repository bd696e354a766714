"""Errors of the integrations name what is wrong, where, and the next thing to try, which works."""

import re

import pytest
import torch
from hf_models import make, run_admin, tokenizer

import cairn


def refusal(call, kind=cairn.Invalid):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_a_step_without_a_model_names_describe(tmp_path):
    pytest.importorskip("transformers")
    import cairn.hf

    model = make("llama")
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"model": model.state_dict()})

        text = refusal(lambda: cairn.hf.from_pretrained(f"{tmp_path}/s@1"))

        assert f"step 1 of {tmp_path}/s is not a model" in text
        assert "States that contain cairn.hf.describe(model) are models" in text
        described = {"model": model.state_dict(), **cairn.hf.describe(model, "model")}
        store.save(2, described)
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/s@2")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_a_model_directory_names_its_import(tmp_path):
    pytest.importorskip("transformers")
    import cairn.hf

    model = make("llama")
    model.save_pretrained(tmp_path / "llama")

    text = refusal(lambda: cairn.hf.from_pretrained(f"{tmp_path}/llama"))

    pattern = r"run kv-admin (import STORE --step N (\S+) --format hf) to import it"
    command = re.search(pattern, text)
    assert command is not None and command[2] == f"{tmp_path}/llama"
    words = command[1].replace("STORE", f"{tmp_path}/s").replace(" N ", " 7 ").split()
    run_admin(*words)
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/s@7")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_a_save_without_a_number_names_the_argument(tmp_path):
    pytest.importorskip("transformers")
    import cairn.hf

    model = make("llama")

    text = refusal(lambda: cairn.hf.save_pretrained(model, tmp_path / "s"))

    assert f"'{tmp_path}/s' names no new step: write STORE@STEP" in text
    cairn.hf.save_pretrained(model, f"{tmp_path}/s@3")
    text = refusal(lambda: cairn.hf.load_tokenizer(f"{tmp_path}/s@3"), cairn.NotFound)
    assert "step 3 has no tokenizer" in text and "passed as tokenizer=" in text
    cairn.hf.save_pretrained(model, f"{tmp_path}/s@4", tokenizer=tokenizer())
    assert len(cairn.hf.load_tokenizer(f"{tmp_path}/s@4")) == 29


def test_another_module_names_the_plain_save(tmp_path):
    pytest.importorskip("transformers")
    import cairn.hf

    model = torch.nn.Linear(2, 2)

    text = refusal(lambda: cairn.hf.save_pretrained(model, tmp_path / "s", 1))

    assert "a Linear is neither a model of transformers" in text
    assert "save its state_dict() with Store.save" in text
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, model.state_dict())


def test_a_file_of_another_plugin_names_that_plugin(tmp_path):
    from cairn.trainers._pointers import read_pointer

    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")

    text = refusal(lambda: read_pointer(tmp_path / "last.ckpt"))

    assert f"{tmp_path}/last.ckpt was not written by Cairn" in text
    assert "load it with the plugin that has saved it" in text


def test_a_pointer_of_a_newer_release_names_the_upgrade(tmp_path):
    from cairn.trainers._pointers import Pointer, read_pointer, write_pointer

    write_pointer(tmp_path / "p", Pointer(str(tmp_path / "s"), 3, ""))
    data = (tmp_path / "p").read_text()
    (tmp_path / "p").write_text(re.sub(r'"cairn": *1', '"cairn": 99', data))

    text = refusal(lambda: read_pointer(tmp_path / "p"))

    assert f"{tmp_path}/p has a version that this release cannot read: use a newer Cairn" in text
