"""The adapters of cairn.convert against transformers and torchtitan: tensors bit for bit, and the
logits of the models that are filled."""

import pytest
import torch
from hf_models import SIZES, assert_same_states, logits

import cairn
from cairn import convert

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def store(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as opened:
        yield opened


def tiny(name, **options):
    """A small model with random weights, and the class of its config."""
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    torch.manual_seed(5)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def zeroed(model):
    for parameter in model.parameters():
        parameter.data.zero_()
    return model


def files_of(model, folder):
    """The tensors that transformers writes for the model."""
    model.save_pretrained(folder)
    return safetensors.load_file(folder / "model.safetensors")


def titan_adapter(module, name, heads, kv_heads, **experts):
    """The adapter of torchtitan with the numbers that it reads of a model's config."""
    from types import SimpleNamespace

    adapters = pytest.importorskip(f"torchtitan.models.{module}.state_dict_adapter")
    layer = SimpleNamespace(
        attention=SimpleNamespace(n_heads=heads, n_kv_heads=kv_heads, head_dim=None),
        moe=SimpleNamespace(**experts) if experts else None,
    )
    config = SimpleNamespace(layers=[layer], dim=32, enable_weight_tying=False)
    return getattr(adapters, name)(config, None)


def test_llama_to_meta_interleaves_the_rows_of_its_heads(store, tmp_path):
    files = files_of(tiny("Llama", tie_word_embeddings=False), tmp_path / "hf")
    store.save(1, files)

    native = store.read(rename=convert.llama_from_hf(heads=4, kv_heads=2), flat=True)

    assert "layers.1.attention.wq.weight" in native
    assert {"tok_embeddings.weight", "norm.weight", "output.weight"} <= native.keys()
    query = files["model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(
        native["layers.1.attention.wq.weight"],
        query.view(4, 2, 4, 32).transpose(1, 2).reshape(32, 32),
    )


HEADS = {"heads": 4, "kv_heads": 2}
TITAN = HEADS | {"native": "torchtitan"}
QWEN3 = convert.qwen3_from_hf(), convert.qwen3_to_hf()
QWEN3_MOE = {
    "num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8
}  # fmt: skip
# A model, its options, the rules to native names and back, a key, and torchtitan's adapter.
NATIVE = {
    "Meta's Llama": (
        "Llama", {}, (convert.llama_from_hf(**HEADS), convert.llama_to_hf(**HEADS)),
        "layers.0.attention.wk.weight", None,
    ),
    "Llama": (
        "Llama", {}, (convert.llama_from_hf(**TITAN), convert.llama_to_hf(**TITAN)),
        "layers.0.attention.qkv_linear.wk.weight", ("llama3", "Llama3StateDictAdapter", {}),
    ),
    "Qwen 3": (
        "Qwen3", {"head_dim": 8}, QWEN3,
        "layers.0.attention.q_norm.weight", ("qwen3", "Qwen3StateDictAdapter", {}),
    ),
    "Qwen 2": ("Qwen2", {}, QWEN3, "layers.0.attention.qkv_linear.wq.bias", None),
    "experts of Qwen 3": (
        "Qwen3Moe", QWEN3_MOE, QWEN3, "layers.0.moe.routed_experts.inner_experts.w1_EFD",
        ("qwen3", "Qwen3StateDictAdapter", {"num_experts": 12}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NATIVE)
def test_native_names_and_back(store, tmp_path, name):
    kind, options, (rules, back), key, adapter = NATIVE[name]
    model = tiny(kind, tie_word_embeddings=False, **options)
    files = files_of(model, tmp_path / "hf")
    store.save(1, files)

    native = store.read(rename=rules, flat=True)

    assert key in native
    store.save(2, native)
    assert_same_states(store.read(step=2, rename=back, flat=True), files)
    if "Moe" not in kind:  # its files have a tensor per expert, and the model does not
        other = zeroed(tiny(kind, tie_word_embeddings=False, **options))
        store.load(other, step=2, rename=back)
        assert torch.equal(logits(other), logits(model))
    if adapter is not None:
        module, class_name, experts = adapter
        titan = titan_adapter(module, class_name, 4, 2, **experts)
        assert_same_states(titan.to_hf(dict(native)), files)


MOE = {
    "Mixtral": (
        {"num_local_experts": 12, "num_experts_per_tok": 2},
        convert.mixtral_fused(),
        convert.mixtral_per_expert(),
    ),
    "Qwen2Moe": (
        {"num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 24},
        convert.qwen_moe_fused(),
        convert.qwen_moe_per_expert(),
    ),
    "Qwen3Moe": (QWEN3_MOE, convert.qwen_moe_fused(), convert.qwen_moe_per_expert()),
}


@pytest.mark.parametrize("name", MOE)
def test_experts_are_fused_and_divided_as_transformers_does(store, tmp_path, name):
    options, fused, per_expert = MOE[name]
    model = tiny(name, tie_word_embeddings=False, **options)
    files = files_of(model, tmp_path / "hf")
    assert any(".experts.11." in key for key in files), "the files have a tensor per expert"
    store.save(1, files)
    store.save(2, model.state_dict())

    other = zeroed(tiny(name, tie_word_embeddings=False, **options))
    store.load(other, step=1, rename=fused)

    assert_same_states(other.state_dict(), model.state_dict())
    assert torch.equal(logits(other), logits(model))
    assert_same_states(store.read(step=2, rename=per_expert, flat=True), files)
