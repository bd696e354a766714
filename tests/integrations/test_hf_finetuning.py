"""A model directory is fine-tuned as a user would do it: imported, trained on two ranks that are
killed, resumed on two ranks and on one, exported, and opened by transformers."""

import shutil

import pytest
import torch

pytest.importorskip("transformers")

from hf_models import assert_same_states, logits, make, run_admin, tokenizer

import cairn
import cairn.hf
from cairn.torch import Saver
from trainer_runs import train

SCRIPT = "finetune_hf.py"
EVERY = 5


def assert_opened_by_transformers(folder, store, step, base):
    """The exported model is the one in the step, bit for bit; its other files are those of the base
    directory."""
    import transformers

    opened = transformers.AutoModelForCausalLM.from_pretrained(folder)
    weights = cairn.open(store).read("model", step)["model"]
    assert_same_states(opened.state_dict(), weights)
    trained = make("llama")
    trained.load_state_dict(weights)
    assert type(opened) is type(trained) and opened.dtype == torch.float32
    assert torch.equal(logits(opened), logits(trained))
    assert torch.equal(logits(opened), logits(cairn.hf.from_pretrained(store, step)))
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert words("cairn")["input_ids"] == tokenizer()("cairn")["input_ids"]
    for name in ("tokenizer.json", "generation_config.json"):
        assert (folder / name).read_bytes() == (base / name).read_bytes(), name
    assert opened.generation_config.max_new_tokens == 7


@pytest.mark.timeout(1500)  # the programs import most of the libraries
def test_a_directory_is_tuned_on_two_ranks_killed_resumed_and_exported(tmp_path):
    base, store, text = tmp_path / "base", tmp_path / "store", tmp_path / "text"
    model = make("llama").bfloat16()
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(base, max_shard_size="10KB")
    tokenizer().save_pretrained(base)
    assert len(list(base.glob("model-*.safetensors"))) >= 2
    text.write_text("pack my box with five dozen liquor jugs " * 40)
    run_admin("import", str(store), "--step", "0", str(base), "--format", "hf", "--prefix", "model")

    options = ("--every", EVERY, "--steps")
    first = train(SCRIPT, store, text, *options, 1000, ranks=2, kill_at=2 * EVERY + 2).losses
    alone = shutil.copytree(store, tmp_path / "alone")
    resumed = cairn.open(store).steps()[-1]
    last = resumed + EVERY + 1
    again = train(SCRIPT, store, text, *options, last, ranks=2).losses
    one = train(SCRIPT, alone, text, *options, last, ranks=1).losses

    assert resumed >= EVERY
    assert list(again) == list(one) == list(range(resumed + 1, last + 1))
    repeated = first.keys() & again.keys()
    assert repeated and all(again[step] == first[step] for step in repeated)
    for step, loss in again.items():  # one rank adds in another order
        assert float(one[step]) == pytest.approx(float(loss), rel=1e-4)
    assert float(one[last]) < float(first[1])
    for path in (store, alone):
        assert cairn.open(path).steps() == [0, last - 1, last]
        out = tmp_path / f"{path.name}-out"
        run_admin("export", str(path), str(out), "--format", "hf")
        assert_opened_by_transformers(out, path, last, base)
    assert_same_states(
        cairn.hf.from_pretrained(store, 0).state_dict(), make("llama").bfloat16().state_dict()
    )


def test_a_described_state_is_a_model_below_any_key(tmp_path):
    model = make("llama-tied-bf16")
    described = cairn.hf.describe(model, "app.net", tokenizer=tokenizer())
    with cairn.open(tmp_path / "store", mode="a") as store:
        store.save(3, {"app": {"net": model.state_dict(), "epoch": 1}, **described})
    loaded = cairn.hf.from_pretrained(tmp_path / "store")
    assert_same_states(loaded.state_dict(), model.state_dict())
    assert torch.equal(logits(loaded), logits(model))
    run_admin("export", str(tmp_path / "store"), str(tmp_path / "out"), "--format", "hf")
    again = type(model).from_pretrained(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    assert len(cairn.hf.load_tokenizer(tmp_path / "store", 3)) == len(tokenizer())


def test_a_resume_ignores_the_files_of_another_version(tmp_path):
    model, words = make("llama"), tokenizer()
    with cairn.open(tmp_path / "store", mode="a") as store:
        with Saver(store, every=1) as saver:
            saver.step(1, {"model": model, **cairn.hf.describe(model, tokenizer=words)})
        with Saver(store, every=1) as saver:
            described = cairn.hf.describe(model)  # without the files of the tokenizer
            before = dict(described["__files__"])
            assert saver.resume({"model": model, **described}) == 1
            assert described["__files__"] == before


def test_wrong_keys_and_models_are_refused(tmp_path):
    model = make("llama")
    with pytest.raises(cairn.Invalid, match="not a model of transformers"):
        cairn.hf.describe(torch.nn.Linear(2, 2))
    with pytest.raises(cairn.Invalid, match="is empty"):
        cairn.hf.describe(model, "")
    with cairn.open(tmp_path / "store", mode="a") as store:
        store.save(1, {"net": model.state_dict(), **cairn.hf.describe(model, "model")})
        store.save(2, {"net": model.state_dict()})
    with pytest.raises(cairn.Invalid, match="no tensors below 'model'"):
        cairn.hf.from_pretrained(tmp_path / "store", 1)
    with pytest.raises(cairn.Invalid, match=r"is not a model: .* cairn\.hf\.describe"):
        cairn.hf.from_pretrained(tmp_path / "store")


def test_wrong_arguments_of_the_loads_are_refused(tmp_path):
    cairn.hf.save_pretrained(make("llama"), tmp_path / "store@1")
    with pytest.raises(cairn.Invalid, match="model_class='AutoModel'"):
        cairn.hf.from_pretrained(tmp_path / "store", model_class="AutoModel")
    with pytest.raises(cairn.Invalid, match="and step=2 another one"):
        cairn.hf.from_pretrained(f"{tmp_path}/store@1", 2)
    with pytest.raises(cairn.NotFound, match="step 1 has no tokenizer"):
        cairn.hf.load_tokenizer(tmp_path / "store")
    make("llama").save_pretrained(tmp_path / "folder")
    with pytest.raises(cairn.Invalid) as refused:
        cairn.hf.from_pretrained(tmp_path / "folder")
    assert "run kv-admin import STORE --step N" in str(refused.value)


def test_a_trainer_starts_from_an_imported_model(tmp_path):
    import transformers

    store = tmp_path / "store"
    cairn.hf.save_pretrained(make("llama"), f"{store}@0")
    data = [{"input_ids": torch.arange(6), "labels": torch.arange(6)}] * 8
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=3, save_steps=1, report_to="none", use_cpu=True
    )
    for given, expected in ((None, None), (0, None), (0, 3)):
        trainer = transformers.Trainer(
            model=cairn.hf.from_pretrained(store, 0), args=options, train_dataset=data
        )
        with cairn.hf.CairnCallback(store, keep_last=1, base=given) as checkpoints:
            checkpoints.attach(trainer)
            if given is None:
                with pytest.raises(cairn.Invalid, match="pass base=0 to CairnCallback"):
                    checkpoints.latest()
            elif expected is None:
                assert checkpoints.latest() is None
                trainer.train()
            else:
                assert f"checkpoint-{expected}-" in checkpoints.latest()
    assert cairn.open(store).steps() == [0, 3]
