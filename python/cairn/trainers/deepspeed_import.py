"""Imports the checkpoints that DeepSpeed has written: ZeRO of all stages, and universal ones.

    from cairn.trainers.deepspeed_import import import_checkpoint

    import_checkpoint("runs/a", "stores/a", step=100)        # the tag that runs/a/latest names

The step contains the consolidated fp32 weights and the state of the optimizer by parameter:
``model.NAME``, ``optimizer.state.NAME.exp_avg`` and so on. Any number of ranks can load it.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from cairn._by_address import save_by_address
from cairn.errors import Invalid, NotFound
from cairn.reports import SaveReport

# The classes that a checkpoint of DeepSpeed contains in addition to tensors and plain values.
_KNOWN = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


def import_checkpoint(
    folder: str | os.PathLike[str],
    store: str | os.PathLike[str],
    step: int,
    *,
    tag: str | None = None,
    overwrite: bool = False,
    allow_pickle: bool = False,
) -> SaveReport:
    """Imports a checkpoint of DeepSpeed as a step. The complete checkpoint is held in memory.

    Args:
        folder: what was passed to ``save_checkpoint``, or the output folder of
            ``ds_to_universal``.
        store: address of the store, which is created if it does not exist.
        tag: name of the checkpoint in the folder; by default the latest. If the folder has neither
            ``latest`` nor ``latest_universal``, it is the checkpoint itself.
        overwrite: replaces the step if it exists.
        allow_pickle: reads files with objects of other classes than DeepSpeed's own. This can run
            any code: use it only for files that you trust.

    Raises:
        NotFound: there is no checkpoint.
        Invalid: a file contains other objects, or the parts do not fit together; nothing is saved.
        Conflict: the step exists, or another process writes the store.

    Threads: may be called from any thread.
    """
    checkpoint = _checkpoint_folder(Path(folder), tag)
    state = _read_checkpoint(checkpoint, allow_pickle)
    note = f"imported from {checkpoint}"
    return save_by_address(store, step, state, alone=True, overwrite=overwrite, note=note)


def _checkpoint_folder(folder: Path, tag: str | None) -> Path:
    for name in ("latest_universal", "latest"):
        if tag is None and (folder / name).is_file():
            tag = (folder / name).read_text().strip()
    found = folder if tag is None else folder / tag
    if not list(found.glob("*mp_rank_*_model_states.pt")):
        raise NotFound(f"{found} is not a checkpoint of DeepSpeed: give the folder and the tag")
    return found


def _read_checkpoint(checkpoint: Path, allow_pickle: bool) -> dict[str, Any]:
    models = sorted(checkpoint.glob("*mp_rank_*_model_states.pt"))
    first = _load(models[0], allow_pickle)
    if len({re.search(r"mp_rank_(\d+)", path.name)[1] for path in models}) > 1:
        raise Invalid(
            f"{checkpoint} has parts of several model-parallel ranks, which only DeepSpeed can "
            "join: convert it with ds_to_universal, and import the result"
        )
    shards = sorted(checkpoint.glob("*_optim_states.pt"), key=_rank_of)
    if (checkpoint / "zero").is_dir():
        weights, moments, groups = _universal(checkpoint, allow_pickle)
    elif shards:
        parts = [_load(path, allow_pickle)["optimizer_state_dict"] for path in shards]
        weights, moments, groups = _zero(parts, first, checkpoint)
    else:
        weights, moments, groups = {}, {}, None
    model = {name: value for name, value in first["module"].items() if name not in weights}
    state = {"model": {**model, **weights}, "optimizer": {"state": moments}}
    if not weights and first.get("optimizer") is not None:
        state["optimizer"] = first["optimizer"]
    elif groups is not None:
        state["optimizer"]["param_groups"] = groups
    for name in ("lr_scheduler", "global_steps", "global_samples", "skipped_steps"):
        if first.get(name) is not None:
            state[name] = first[name]
    return state


def _load(path: Path, allow_pickle: bool) -> dict[str, Any]:
    with torch.serialization.safe_globals(_KNOWN):
        try:
            return torch.load(path, map_location="cpu", weights_only=not allow_pickle)
        except Exception as error:
            if allow_pickle:
                raise Invalid(f"{path} cannot be read: {error}", file=str(path)) from error
            raise Invalid(
                f"{path} cannot be read without running code from it: pass allow_pickle=True if "
                f"you trust it ({str(error).splitlines()[0]})",
                file=str(path),
            ) from error


def _rank_of(path: Path) -> int:
    found = re.search(r"zero_pp_rank_(\d+)", path.name)
    return int(found[1]) if found else 0


def _zero(
    parts: list[dict[str, Any]], first: dict[str, Any], checkpoint: Path
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Weights, moments by parameter, and parameter groups, from the partitions of all ranks."""
    stage = int(parts[0]["zero_stage"])
    ranks = parts[0]["partition_count"]
    ranks = max(ranks) if isinstance(ranks, list) else ranks
    if ranks != len(parts):
        raise Invalid(f"{checkpoint} has the optimizer states of {len(parts)} of {ranks} ranks")
    shapes = first["param_shapes"]
    if stage == 3:
        base = [part["optimizer_state_dict"] for part in parts]
        flat = [part["fp32_flat_groups"] for part in parts]
    else:
        base = [part["base_optimizer_state"] for part in parts]
        flat = [part["single_partition_of_fp32_groups"] for part in parts]

    def join(tensors: list[torch.Tensor], named: dict[str, Any]) -> dict[str, torch.Tensor]:
        # Stages 1 and 2 divide the flat group, stage 3 each parameter.
        whole = tensors if stage == 3 else [torch.cat([one.reshape(-1) for one in tensors])]
        return _join(whole, named)

    weights: dict[str, Any] = {}
    moments: dict[str, Any] = {name: {} for group in shapes for name in group}
    for group, named in enumerate(shapes):
        weights.update(join([one[group] for one in flat], named))
        state = [one["state"].get(group, {}) for one in base]
        for field, value in state[0].items():
            if not torch.is_tensor(value) or value.ndim == 0:
                whole = dict.fromkeys(named, value)
            else:
                whole = join([one[field] for one in state], named)
            for name, part in whole.items():
                moments[name][field] = part.clone() if torch.is_tensor(part) else part
    for names in first.get("shared_params") or {}:
        if first["shared_params"][names] in weights:
            weights[names] = weights[first["shared_params"][names]]
    return weights, moments, _group_options(base[0].get("param_groups"), shapes)


def _join(parts: list[torch.Tensor], named: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The parameters of a group. Each is divided among the parts, with padding in each of them; a
    single part is the flat group in order, possibly with padding at the end."""
    result, offset = {}, 0
    for name, shape in named.items():
        count = math.prod(shape)
        length = math.ceil(count / len(parts))
        if offset + length > parts[0].numel():
            raise Invalid(f"'{name}' exceeds the partitions of the ranks: files are missing")
        pieces = [part.reshape(-1)[offset : offset + length] for part in parts]
        result[name] = torch.cat(pieces)[:count].reshape(tuple(shape)).clone()
        offset += length
    return result


def _group_options(groups: Any, shapes: list[dict[str, Any]]) -> Any:
    """The parameter groups with names in place of the flat tensors."""
    if not isinstance(groups, list) or len(groups) != len(shapes):
        return None
    return [{**group, "params": list(named)} for group, named in zip(groups, shapes)]


def _universal(checkpoint: Path, allow_pickle: bool) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """A universal checkpoint has one folder per parameter, with a file per tensor."""
    weights: dict[str, Any] = {}
    moments: dict[str, Any] = {}
    for folder in sorted(path for path in (checkpoint / "zero").iterdir() if path.is_dir()):
        for file in sorted(folder.glob("*.pt")):
            found = _load(file, allow_pickle)
            value = found["param"] if isinstance(found, dict) else found
            if file.stem == "fp32":
                weights[folder.name] = value
            else:
                moments.setdefault(folder.name, {})[file.stem] = value
    return weights, moments, None
