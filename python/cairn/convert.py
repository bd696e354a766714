"""Rules that convert checkpoints between the names and layouts of different programs.

A rule is a dict that JSON can express, so the rules of ``store.load(rename=...)``,
``store.read(rename=...)`` and ``kv-admin import`` and ``export --rules FILE`` are the same. The
functions of this module make rules and check nothing; the call that uses rules checks them.
docs/conversion.md describes them.

    rules = [
        cairn.convert.rename({r"^model\\.": ""}),
        cairn.convert.concat(["gate_proj", "up_proj"], "gate_up_proj"),
    ]
    store.load(state, rename=rules)

In every rule, the first match of a regular expression (of RE2's syntax) in a key is replaced by a
text, in which ``\\1`` is the first group. Keys that no rule matches keep their names. Rules are
applied in order. All functions may be called from any thread.

Below the rules are those between the layouts of model families: Hugging Face, Meta, torchtitan; one
tensor per expert or fused ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cairn.errors import Invalid

Rule = dict[str, Any]
"""A value in JSON: texts, integers, lists and dicts of them."""


def rename(names: Mapping[str, str]) -> Rule:
    """Renames keys: regular expressions, each with what replaces its first match. All of them apply
    to the names before the rule, so that two keys can exchange their names; a key that two of them
    match is an error."""
    return {"rename": dict(names)}


def drop(pattern: str) -> Rule:
    """Leaves out the keys that the expression matches."""
    return {"drop": pattern}


def split(
    pattern: str, into: Sequence[str], *, dim: int = 0, sizes: Sequence[int] | None = None
) -> Rule:
    """Divides one tensor into several along ``dim``: into equal parts, or into parts of ``sizes``
    elements, such as the query, key and value rows of a fused projection."""
    rule: Rule = {"split": pattern, "into": list(into), "dim": dim}
    return rule if sizes is None else {**rule, "sizes": list(sizes)}


def concat(parts: Sequence[str], to: str, *, dim: int = 0) -> Rule:
    """Joins several tensors along ``dim``. The first element of ``parts`` is an expression; what
    replaces its match gives the names of the other parts and of the result."""
    return {"concat": list(parts), "to": to, "dim": dim}


def stack(pattern: str, to: str, *, dim: int = 0, group: int | None = None) -> Rule:
    """Joins the tensors with the same new name along a new dimension ``dim``. Group ``group`` of
    the expression (by default the last one) is the position of a tensor; positions have no gaps."""
    rule: Rule = {"stack": pattern, "to": to, "dim": dim}
    return rule if group is None else {**rule, "group": group}


def unstack(pattern: str, to: str, *, dim: int = 0) -> Rule:
    """Divides a tensor into one per index of ``dim``, which they do not have. ``to`` contains
    ``{i}`` in place of the index."""
    return {"unstack": pattern, "to": to, "dim": dim}


def permute(pattern: str, dims: Sequence[int]) -> Rule:
    """Changes the order of the dimensions, as ``Tensor.permute``. ``(1, 0)`` transposes a
    matrix."""
    return {"permute": pattern, "dims": list(dims)}


def rearrange(pattern: str, factors: Sequence[int], order: Sequence[int], *, dim: int = 0) -> Rule:
    """Views ``dim`` as ``factors`` (one may be -1), permutes these by ``order``, and merges them
    again."""
    return {"rearrange": pattern, "factors": list(factors), "order": list(order), "dim": dim}


def cast(pattern: str, dtype: Any) -> Rule:
    """Casts the tensors that the expression matches to a dtype such as ``torch.bfloat16``."""
    return {"cast": pattern, "dtype": _name_of(dtype)}


def dequantize(
    dtype: Any = "bfloat16",
    *,
    scale: str = r"\.weight_scale_inv$",
    weight: str = ".weight",
    block: int = 128,
) -> Rule:
    """Multiplies block-scaled 8-bit matrices by their factors, which are then left out.

    Args:
        dtype: the dtype of the results.
        scale: expression of the factors, float32 matrices with one element per block.
        weight: what replaces its match in the name of the matrix.
        block: rows and columns of a block.
    """
    return {"dequantize": scale, "weight": weight, "block": block, "dtype": _name_of(dtype)}


def load_rules(path: str | os.PathLike[str]) -> list[Rule]:
    """The rules in a JSON file. Raises Invalid if it is not a list of dicts."""
    try:
        rules = json.loads(Path(path).read_text())
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"{os.fspath(path)}: the rules are not JSON ({error}): save_rules writes such a file"
        ) from None
    rules = [rules] if isinstance(rules, dict) else rules
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise Invalid(
            f"{os.fspath(path)}: a JSON list of rules is needed: save_rules writes such a file"
        )
    return rules


def save_rules(path: str | os.PathLike[str], rules: Iterable[Rule]) -> None:
    """Writes a JSON file that ``kv-admin --rules`` and :func:`load_rules` read."""
    Path(path).write_text(json.dumps(list(rules), indent=2) + "\n")


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


# Model families. Hugging Face's Llama rotates the two halves of a head; Meta's and torchtitan's
# rotates pairs of neighbours. The rows of the query and key projections differ accordingly. Qwen
# rotates halves everywhere.

_LAYER = r"layers\.(\d+)\."

# Suffixes after "layers.N." in the names of Hugging Face, and in the native names.
_BLOCK_NAMES = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
}
_TOP_NAMES = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm"}


def _names(native: str) -> tuple[dict[str, str], dict[str, str]]:
    """The names inside a layer and outside of layers, from Hugging Face's names to native ones."""
    if native not in ("meta", "torchtitan"):
        raise Invalid(f"native={native!r}: give 'meta' or 'torchtitan'")
    inside = "attention.qkv_linear." if native == "torchtitan" else "attention."
    block = {f"self_attn.{each}_proj": f"{inside}w{each}" for each in "qkv"} | _BLOCK_NAMES
    top = {**_TOP_NAMES, "lm_head": "lm_head" if native == "torchtitan" else "output"}
    return block, top


def _escape(name: str) -> str:
    return name.replace(".", r"\.")


def _rename_from_hf(native: str) -> Rule:
    block, top = _names(native)
    names = {rf"^model\.{_LAYER}{_escape(hf)}\.": rf"layers.\1.{own}." for hf, own in block.items()}
    return rename({**names, **{rf"^{_escape(hf)}\.": f"{own}." for hf, own in top.items()}})


def _rename_to_hf(native: str) -> Rule:
    block, top = _names(native)
    names = {rf"^{_LAYER}{_escape(own)}\.": rf"model.layers.\1.{hf}." for hf, own in block.items()}
    return rename({**names, **{rf"^{_escape(own)}\.": f"{hf}." for hf, own in top.items()}})


def llama_from_hf(*, heads: int, kv_heads: int, native: str = "meta") -> list[Rule]:
    """From the names and layout of Hugging Face's Llama to the native ones.

    Args:
        heads: ``num_attention_heads`` of the model's config.
        kv_heads: ``num_key_value_heads`` of the model's config.
        native: ``"meta"`` for Meta's names (``layers.0.attention.wq.weight``,
            ``output.weight``), or ``"torchtitan"``.
    """
    return [
        drop(r"\.rotary_emb\.inv_freq$"),
        rearrange(r"\.self_attn\.q_proj\.weight$", (heads, 2, -1), (0, 2, 1)),
        rearrange(r"\.self_attn\.k_proj\.weight$", (kv_heads, 2, -1), (0, 2, 1)),
        _rename_from_hf(native),
    ]


def llama_to_hf(*, heads: int, kv_heads: int, native: str = "meta") -> list[Rule]:
    """From native names and layout to Hugging Face's Llama; see :func:`llama_from_hf`."""
    return [
        drop(r"^(rope\.freqs|freqs_cis)$"),
        rearrange(r"\.wq\.weight$", (heads, -1, 2), (0, 2, 1)),
        rearrange(r"\.wk\.weight$", (kv_heads, -1, 2), (0, 2, 1)),
        _rename_to_hf(native),
    ]


# The experts of Qwen in torchtitan: what follows "layers.N.", by the projection of an expert.
_TITAN_EXPERTS = {
    "gate_proj": "moe.routed_experts.inner_experts.w1_EFD",
    "up_proj": "moe.routed_experts.inner_experts.w3_EFD",
    "down_proj": "moe.routed_experts.inner_experts.w2_EDF",
}


def qwen3_from_hf() -> list[Rule]:
    """From the names of Hugging Face's Qwen 3, dense or with an expert per tensor, to
    torchtitan's."""
    experts = [
        stack(rf"^model\.{_LAYER}mlp\.experts\.(\d+)\.{projection}\.weight$", rf"layers.\1.{own}")
        for projection, own in _TITAN_EXPERTS.items()
    ]
    router = {rf"^model\.{_LAYER}mlp\.gate\.": r"layers.\1.moe.router.gate."}
    dense = _rename_from_hf("torchtitan")
    return [drop(r"\.rotary_emb\.inv_freq$"), *experts, rename({**dense["rename"], **router})]


def qwen3_to_hf() -> list[Rule]:
    """From torchtitan's names to the names of Hugging Face's Qwen 3, with an expert per tensor."""
    experts = [
        unstack(
            rf"^{_LAYER}{_escape(own)}$", rf"model.layers.\1.mlp.experts.{{i}}.{projection}.weight"
        )
        for projection, own in _TITAN_EXPERTS.items()
    ]
    router = {rf"^{_LAYER}moe\.router\.gate\.": r"model.layers.\1.mlp.gate."}
    return [*experts, rename({**_rename_to_hf("torchtitan")["rename"], **router})]


def _fused(experts: str, gate: str, up: str, down: str) -> list[Rule]:
    """From one tensor per expert to the fused experts of transformers 5. ``experts`` is what comes
    before the position of an expert."""
    parts = {name: rf"{_escape(experts)}\.(\d+)\.{name}\.weight$" for name in (gate, up, down)}
    return [
        *(stack(pattern, f"{experts}.{name}") for name, pattern in parts.items() if name != down),
        concat(
            [rf"{_escape(experts)}\.{gate}$", f"{experts}.{up}"], ".mlp.experts.gate_up_proj", dim=1
        ),
        stack(parts[down], ".mlp.experts.down_proj"),
    ]


def _per_expert(experts: str, gate: str, up: str, down: str) -> list[Rule]:
    return [
        split(r"\.mlp\.experts\.gate_up_proj$", [f"{experts}.{gate}", f"{experts}.{up}"], dim=1),
        *(
            unstack(rf"{_escape(experts)}\.{name}$", f"{experts}.{{i}}.{name}.weight")
            for name in (gate, up)
        ),
        unstack(r"\.mlp\.experts\.down_proj$", f"{experts}.{{i}}.{down}.weight"),
    ]


def mixtral_fused() -> list[Rule]:
    """From the files of Mixtral, which have one tensor per expert, to the fused experts of the
    model of transformers 5."""
    return [
        *_fused(".block_sparse_moe.experts", "w1", "w3", "w2"),
        rename({r"\.block_sparse_moe\.": ".mlp."}),
    ]


def mixtral_per_expert() -> list[Rule]:
    """From the fused experts of the model of transformers 5 to the files of Mixtral."""
    return [
        *_per_expert(".block_sparse_moe.experts", "w1", "w3", "w2"),
        rename({r"\.mlp\.gate\.": ".block_sparse_moe.gate."}),
    ]


def qwen_moe_fused() -> list[Rule]:
    """From the files of Qwen 2 and 3 with experts, which have one tensor per expert, to the fused
    experts of the model of transformers 5."""
    return _fused(".mlp.experts", "gate_proj", "up_proj", "down_proj")


def qwen_moe_per_expert() -> list[Rule]:
    """From the fused experts of the model of transformers 5 to the files of Qwen with experts."""
    return _per_expert(".mlp.experts", "gate_proj", "up_proj", "down_proj")
