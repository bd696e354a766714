"""English text that every Debian machine has: the licenses in /usr/share/common-licenses."""

import random
from pathlib import Path

import torch

BATCH = 8

LICENSES = Path("/usr/share/common-licenses")


def read_documents() -> dict[str, torch.Tensor]:
    """Returns a map from name to the bytes of the file (uint8, 1-d), sorted by name, without links.

    Raises FileNotFoundError if the machine has no such file (a minimal container).
    """
    documents = {}
    for path in sorted(LICENSES.glob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 4096:
            documents[path.name] = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    if not documents:
        raise FileNotFoundError(f"no license texts in {LICENSES}: apt-get install base-files")
    return documents


def next_batch(text: torch.Tensor, length: int) -> torch.Tensor:
    """Returns random windows of `text`: [BATCH, length], int64. Uses Python's `random`."""
    starts = [random.randrange(len(text) - length) for _ in range(BATCH)]
    return torch.stack([text[start : start + length] for start in starts]).long()
