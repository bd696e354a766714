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
"""

from cairn.convert._models import (
    llama_from_hf,
    llama_to_hf,
    mixtral_fused,
    mixtral_per_expert,
    qwen3_from_hf,
    qwen3_to_hf,
    qwen_moe_fused,
    qwen_moe_per_expert,
)
from cairn.convert._rules import (
    Rule,
    cast,
    concat,
    dequantize,
    drop,
    load_rules,
    permute,
    rearrange,
    rename,
    save_rules,
    split,
    stack,
    unstack,
)

__all__ = [
    "Rule",
    "cast",
    "concat",
    "dequantize",
    "drop",
    "llama_from_hf",
    "llama_to_hf",
    "load_rules",
    "mixtral_fused",
    "mixtral_per_expert",
    "permute",
    "qwen3_from_hf",
    "qwen3_to_hf",
    "qwen_moe_fused",
    "qwen_moe_per_expert",
    "rearrange",
    "rename",
    "save_rules",
    "split",
    "stack",
    "unstack",
]
