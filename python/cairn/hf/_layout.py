"""How a step contains a model directory. core/interop/model_directory/model_layout.h defines the
same in C++."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cairn._base.tree import FILES, WEIGHTS
from cairn.errors import Corrupt, Invalid

_MAX_FILE_BYTES = 256 << 20
_MAX_VALUE_BYTES = 1 << 20
_MAX_NAME_BYTES = 1000
_MAX_PART_BYTES = 200
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


class Weights(NamedTuple):
    """The weights of a model, or of one part of a pipeline."""

    stem: str
    """Path in the directory without ``.safetensors``."""
    prefix: str
    """The key of the step below which its tensors are; "": the tensors have their own names."""
    tensors: Mapping[str, Any]


def make_state(weights: list[Weights], files: Mapping[str, bytes]) -> dict[str, Any]:
    """The state to save. Raises Invalid for names that cannot be kept."""
    state: dict[str, Any] = {}
    for one in weights:
        if one.prefix:
            state[one.prefix] = dict(one.tensors)
        else:
            state.update(one.tensors)
    description = {
        one.stem: {"prefix": one.prefix, "metadata": {"format": "pt"}} for one in weights
    }
    for key in (FILES, WEIGHTS):
        if key in state:
            raise Invalid(f"the model has a tensor with the reserved name '{key}'", key=key)
    state[FILES] = {name: _stored(name, data) for name, data in sorted(files.items())}
    state[WEIGHTS] = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return state


def _stored(name: str, data: bytes) -> Any:
    if not is_file_name(name):
        raise Invalid(f"a file named {name!r} cannot be kept with a step")
    if len(data) > _MAX_FILE_BYTES:
        raise Invalid(f"'{name}' has {len(data)} bytes: at most {_MAX_FILE_BYTES} are kept")
    if len(data) <= _MAX_VALUE_BYTES:
        return data
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def is_file_name(name: str) -> bool:
    """Whether this is a relative path of plain names, which stays inside of a directory."""
    if not 0 < len(name.encode(errors="surrogatepass")) <= _MAX_NAME_BYTES:
        return False
    return all(ord(c) >= 32 for c in name) and all(
        part and not part.startswith(".") and len(part.encode(errors="replace")) <= _MAX_PART_BYTES
        for part in name.split("/")
    )


def read_folder(folder: str | Path) -> dict[str, bytes]:
    """The files in a folder that a library has written, without weights, by name."""
    folder = Path(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(_WEIGHT_SUFFIXES)
    }


def write_folder(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a step into an empty folder. Their names have been checked."""
    for name, data in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def decode_files(stored: Any, step: int) -> dict[str, bytes]:
    """The files of a step, by name. Raises Corrupt for names or contents that are not of files."""
    if not isinstance(stored, dict):
        raise Corrupt(f"step {step}: '{FILES}' is not a dict of files", key=FILES, step=step)
    files = {}
    for name, data in stored.items():
        if not isinstance(name, str) or not is_file_name(name):
            raise Corrupt(f"step {step}: {name!r} is not the name of a file", key=FILES, step=step)
        if not isinstance(data, bytes):
            if str(getattr(data, "dtype", "")) != "torch.uint8" or data.dim() != 1:
                raise Corrupt(f"step {step}: '{name}' is not a file", key=FILES, step=step)
            data = data.numpy().tobytes()
        files[name] = data
    return files


def decode_prefixes(text: Any, step: int) -> dict[str, str]:
    """The prefix of the weights of each folder, by the folder; "" is the directory itself. Raises
    Corrupt."""
    damaged = Corrupt(f"step {step}: '{WEIGHTS}' is damaged", key=WEIGHTS, step=step)
    try:
        described = json.loads(text)
        prefixes = {stem.rpartition("/")[0]: one["prefix"] for stem, one in described.items()}
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        raise damaged from None
    if not all(isinstance(prefix, str) for prefix in prefixes.values()):
        raise damaged
    return prefixes
