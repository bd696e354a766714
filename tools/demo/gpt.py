"""A small GPT over bytes in plain torch, and its text, both independent of Cairn.

The text is English that every Debian machine has: the licenses in /usr/share/common-licenses.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
LICENSES = Path("/usr/share/common-licenses")


@dataclass(frozen=True)
class Config:
    vocab: int = 256  # tokens are bytes
    context: int = 128
    layers: int = 4
    heads: int = 8
    width: int = 256
    dropout: float = 0.1


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(mixed, self.dropout, self.training)
        hidden = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(hidden, self.dropout, self.training)


class Trunk(nn.Module):
    """Embedding and blocks: maps [batch, length] tokens to [batch, length, width]."""

    def __init__(self, config: Config):
        super().__init__()
        tokens = nn.Embedding(config.vocab, config.width)
        positions = nn.Embedding(config.context, config.width)
        self.embed = nn.ModuleDict({"tokens": tokens, "positions": positions})
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        x = self.embed["tokens"](tokens) + self.embed["positions"](positions)
        for layer in self.layers:
            x = layer(x)
        return x


class GPT(Trunk):
    """Next-byte prediction; the head is the token embedding itself (tied weights)."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        nn.init.normal_(self.embed["tokens"].weight, std=0.06)
        self.head.weight = self.embed["tokens"].weight

    def loss(self, tokens: Tensor) -> Tensor:
        """`tokens`: [batch, length + 1]."""
        logits = self.head(self.norm(self(tokens[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Adapted(Trunk):
    """A pretrained trunk, a small new adapter, and the (tied) embedding as head."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.adapter = nn.Sequential(
            nn.LayerNorm(config.width),
            nn.Linear(config.width, config.width),
            nn.GELU(),
            nn.Linear(config.width, config.width),
        )
        nn.init.zeros_(self.adapter[-1].weight)  # starts as a GPT without adapter
        self.norm = nn.LayerNorm(config.width)

    def loss(self, tokens: Tensor) -> Tensor:
        """`tokens`: [batch, length + 1]."""
        x = self(tokens[:, :-1])
        logits = F.linear(self.norm(x + self.adapter(x)), self.embed["tokens"].weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def read_documents() -> list[Tensor]:
    """Returns the bytes of each license (uint8, 1-d), in the order of their names, without links.

    Raises FileNotFoundError if the machine has no such file (a minimal container).
    """
    files = [path for path in sorted(LICENSES.glob("*")) if path.is_file()]
    documents = [path.read_bytes() for path in files if not path.is_symlink()]
    if not documents:
        raise FileNotFoundError(f"no license texts in {LICENSES}: apt-get install base-files")
    return [torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in documents
            if len(text) > 4096]  # fmt: skip


def next_batch(text: Tensor) -> Tensor:
    """Returns random windows of `text`: [BATCH, context + 1], int64. Uses Python's `random`."""
    length = Config.context + 1
    starts = [random.randrange(len(text) - length) for _ in range(BATCH)]
    return torch.stack([text[start : start + length] for start in starts]).long()
