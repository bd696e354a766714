"""Tiny models of Hugging Face libraries with random weights, made from configurations."""

import torch


def run_admin(*words):
    """Runs kv-admin, which must succeed."""
    from tool_programs import run_program

    run_program("kv-admin", *words, status=0)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def make(name):
    """A model by the name of its kind, always with the same weights."""
    import transformers as tf

    torch.manual_seed(0)
    if name == "llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES)).eval()
    if name == "llama-scaled-rope":
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
                   "rope_theta": 10000.0}
        return tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, rope_parameters=scaling)).eval()
    if name == "llama-tied-bf16":
        config = tf.LlamaConfig(**SIZES, tie_word_embeddings=True, dtype=torch.bfloat16)
        return tf.AutoModelForCausalLM.from_config(config).eval()  # rotary frequencies are float32
    if name == "gpt2":
        sizes = {"vocab_size": 32, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
        return tf.GPT2LMHeadModel(tf.GPT2Config(**sizes)).eval()
    if name == "mixtral":
        config = tf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
        return tf.MixtralForCausalLM(config).eval()
    if name == "bert":
        config = tf.BertConfig(vocab_size=32, hidden_size=32, intermediate_size=48,
                               num_hidden_layers=2, num_attention_heads=4)
        return tf.BertForMaskedLM(config).eval()
    if name == "t5":
        config = tf.T5Config(vocab_size=32, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                             decoder_start_token_id=0)
        return tf.T5ForConditionalGeneration(config).eval()
    raise KeyError(name)


KINDS = ("llama", "llama-scaled-rope", "llama-tied-bf16", "gpt2", "mixtral", "bert", "t5")


@torch.no_grad()
def logits(model):
    tokens = torch.arange(24).reshape(2, 12) % 29
    if model.config.is_encoder_decoder:
        return model(input_ids=tokens, decoder_input_ids=tokens).logits
    return model(input_ids=tokens).logits


def directory_of(folder):
    """The files of a directory by name; safetensors files as tensors and metadata."""
    from safetensors import safe_open

    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                found[name] = ({k: file.get_tensor(k) for k in file.keys()}, file.metadata())
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def assert_same_directories(first, second):
    a, b = directory_of(first), directory_of(second)
    assert a.keys() == b.keys()
    for name, content in a.items():
        if isinstance(content, bytes):
            assert content == b[name], name
        else:
            assert content[1] == b[name][1], name
            assert_same_states(content[0], b[name][0])


def assert_same_states(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype and torch.equal(a[key], b[key]), key
