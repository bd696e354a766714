"""cairn.hf and kv-admin with models of transformers: equal, bit for bit, to what transformers
saves and loads itself."""

import os

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from hf_models import (
    KINDS,
    assert_same_directories,
    assert_same_states,
    directory_of,
    logits,
    make,
    run_admin,
    tokenizer,
)

import cairn
import cairn.hf


def save_directory(model, folder, **options):
    model.save_pretrained(folder, **options)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_what_transformers_saves(kind, tmp_path):
    model = make(kind)
    save_directory(model, tmp_path / "own")

    cairn.hf.save_pretrained(model, f"{tmp_path}/s@5", tokenizer=tokenizer())
    run_admin("export", f"{tmp_path}/s@5", tmp_path / "exported", "--format", "hf")

    assert_same_directories(tmp_path / "own", tmp_path / "exported")


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_loaded_as_transformers_loads_it(kind, mmap, tmp_path):
    model = make(kind)
    save_directory(model, tmp_path / "own")
    cairn.hf.save_pretrained(model, f"{tmp_path}/s@5", tokenizer=tokenizer())

    own = type(model).from_pretrained(tmp_path / "own")
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/s@5", mmap=mmap)

    assert type(loaded) is type(model) and not loaded.training
    assert_same_states(dict(own.state_dict()), dict(loaded.state_dict()))
    assert_same_states(dict(own.named_buffers()), dict(loaded.named_buffers()))
    assert torch.equal(logits(own), logits(loaded)) and torch.equal(logits(model), logits(loaded))
    if own.can_generate():
        assert own.generation_config.to_dict() == loaded.generation_config.to_dict()
    output = loaded.get_output_embeddings()
    is_tied = output.weight is loaded.get_input_embeddings().weight
    assert is_tied == bool(model.config.tie_word_embeddings)


@pytest.mark.parametrize("kind", ["llama", "mixtral", "gpt2"])
def test_a_directory_becomes_a_step_and_a_directory_again(kind, tmp_path):
    own = save_directory(make(kind), tmp_path / "own", max_shard_size="20KB")
    assert len(list(own.glob("model-*.safetensors"))) > 1

    run_admin("import", f"{tmp_path}/s", "--step", 3, own, "--format", "hf")
    run_admin("export", f"{tmp_path}/s", tmp_path / "whole", "--format", "hf")
    words = "--format", "hf", "--shard-size", "20KB"
    run_admin("export", f"{tmp_path}/s", tmp_path / "shards", *words)

    whole = directory_of(tmp_path / "whole")
    for name, content in directory_of(own).items():
        if "safetensors" not in name:
            assert whole[name] == content, name
    for folder in ("whole", "shards"):
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert torch.equal(logits(again), logits(make(kind)))
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/s@3")
    assert torch.equal(logits(loaded), logits(make(kind)))


def test_the_tokenizer_is_kept(tmp_path):
    cairn.hf.save_pretrained(make("gpt2"), f"{tmp_path}/s@1", tokenizer=tokenizer())
    loaded = cairn.hf.load_tokenizer(f"{tmp_path}/s")
    assert loaded("cairn").input_ids == tokenizer()("cairn").input_ids
    assert loaded.eos_token == "</s>"
    with cairn.hf.files(f"{tmp_path}/s@1") as folder:
        assert "tokenizer.json" in os.listdir(folder)
    assert not os.path.exists(folder)


def test_other_dtypes_and_classes_on_request(tmp_path):
    model = make("llama")
    save_directory(model, tmp_path / "own")
    cairn.hf.save_pretrained(model, f"{tmp_path}/s@1")
    for dtype in (torch.bfloat16, torch.float16):
        own = type(model).from_pretrained(tmp_path / "own", dtype=dtype)
        loaded = cairn.hf.from_pretrained(f"{tmp_path}/s@1", dtype=dtype, device="cpu")
        assert loaded.dtype == dtype
        assert_same_states(dict(own.state_dict()), dict(loaded.state_dict()))
    base = cairn.hf.from_pretrained(f"{tmp_path}/s@1", model_class=transformers.AutoModel)
    assert type(base) is transformers.LlamaModel


def test_a_loaded_model_is_trained_and_saved_again(tmp_path):
    cairn.hf.save_pretrained(make("llama"), f"{tmp_path}/s@1")
    model = cairn.hf.from_pretrained(f"{tmp_path}/s@1", mmap=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(12)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()

    report = cairn.hf.save_pretrained(model, f"{tmp_path}/s@2", tags=["trained"])

    assert report.step == 2
    again = cairn.hf.from_pretrained(f"{tmp_path}/s@trained")
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(logits(cairn.hf.from_pretrained(f"{tmp_path}/s@1")), logits(make("llama")))


def test_an_open_store_and_unchanged_weights(tmp_path):
    model = make("llama")
    with cairn.open(tmp_path / "s", mode="a") as store:
        cairn.hf.save_pretrained(model, store, 1)
        report = cairn.hf.save_pretrained(model, store, 2)
    assert report.written_bytes == 0 and report.chunks_reused == report.chunks


CODE = """
from transformers import PreTrainedConfig, PreTrainedModel
import torch

class OwnConfig(PreTrainedConfig):
    model_type = "cairn-own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(3, 3)
        self.post_init()
    def forward(self, x):
        return self.linear(x)
"""


def test_code_of_a_model_runs_only_when_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "own_model.py").write_text(CODE)
    import own_model

    own_model.OwnConfig.register_for_auto_class()
    own_model.OwnModel.register_for_auto_class("AutoModel")
    model = own_model.OwnModel(own_model.OwnConfig())
    cairn.hf.save_pretrained(model, f"{tmp_path}/s@1")
    with cairn.open(tmp_path / "s") as store:
        assert "__files__.own_model.py" in store.keys()

    with pytest.raises(ValueError, match="trust_remote_code"):
        cairn.hf.from_pretrained(f"{tmp_path}/s@1")
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/s@1", trust_remote_code=True)
    x = torch.ones(1, 3)
    assert torch.equal(loaded(x), model(x))


def test_errors_state_what_is_wrong(tmp_path):
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"w": torch.ones(2)})
    with pytest.raises(cairn.Invalid, match="not a model: it has no '__weights__'.*describe"):
        cairn.hf.from_pretrained(f"{tmp_path}/s@1")
    with pytest.raises(cairn.NotFound):
        cairn.hf.from_pretrained(f"{tmp_path}/s@7")
    with pytest.raises(cairn.NotFound):
        cairn.hf.from_pretrained(f"{tmp_path}/absent@7")
    with pytest.raises(cairn.Invalid, match="names no new step"):
        cairn.hf.save_pretrained(make("llama"), tmp_path / "s")
    with pytest.raises(cairn.Invalid, match="neither a model"):
        cairn.hf.save_pretrained(torch.nn.Linear(2, 2), f"{tmp_path}/s@2")
    with pytest.raises(cairn.Conflict):
        cairn.hf.save_pretrained(make("llama"), f"{tmp_path}/s@1")
    with pytest.raises(cairn.Invalid, match="base="):
        cairn.hf.save_pretrained(make("llama"), f"{tmp_path}/s@2", base=f"{tmp_path}/s@1")
    with cairn.open(tmp_path / "s") as store:
        assert store.steps() == [1]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", ".hidden", "a//b", "a\nb", ""])
def test_hostile_names_of_files_are_refused(tmp_path, name):
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"__files__": {name: b"x"}, "__weights__": "{}"})
    with pytest.raises(cairn.Corrupt, match="is not the name of a file"):
        cairn.hf.from_pretrained(f"{tmp_path}/s")
