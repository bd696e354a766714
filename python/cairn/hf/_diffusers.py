"""Models and pipelines of diffusers from a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cairn.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from cairn.hf._load import Loading, StoredModel


def load(stored: StoredModel, how: Loading, options: dict[str, Any]) -> Any:
    """The model or the pipeline that the step contains."""
    if "model_index.json" in stored.files:
        return _pipeline(stored, how, options)
    if options:
        raise Invalid(f"unknown options for a model of diffusers: {sorted(options)}")
    return _model(stored, "", how)


def _pipeline(stored: StoredModel, how: Loading, options: dict[str, Any]) -> Any:
    import diffusers

    from cairn.hf._load import load_transformers

    parts = {}
    each = how._replace(model_class=None)
    for name, entry in stored.json("model_index.json").items():
        is_part = isinstance(entry, list) and len(entry) == 2 and all(entry)
        if name in options or not is_part or name not in stored.prefixes:
            continue  # the pipeline loads parts without weights from their files
        library, class_name = entry
        if library == "diffusers":
            parts[name] = _model(stored, name, each)
        elif library == "transformers":
            dtype = how.dtype or torch.float32
            parts[name] = load_transformers(stored, name, each._replace(dtype=dtype), {})
        else:
            raise Invalid(
                f"step {stored.step}: the part '{name}' is of {library}.{class_name}; create it, "
                f"and pass it as {name}=",
                step=stored.step,
            )
    found = how.model_class or diffusers.DiffusionPipeline
    with stored.folder() as folder:
        return found.from_pretrained(
            folder, trust_remote_code=how.trust_remote_code, **parts, **options
        )


def _model(stored: StoredModel, part: str, how: Loading) -> Any:
    """Creates the parameters on the meta device and the buffers in memory, as diffusers does."""
    import accelerate
    import diffusers

    config = stored.json(f"{part}/config.json" if part else "config.json")
    name = config.get("_class_name")
    found = how.model_class or getattr(diffusers, str(name), None)
    if not (isinstance(found, type) and issubclass(found, diffusers.ModelMixin)):
        raise Invalid(f"step {stored.step}: diffusers has no model {name!r}", step=stored.step)
    if config.get("quantization_config") is not None:
        raise Invalid(
            f"step {stored.step}: the model is quantized; export it with kv-admin and load that",
            step=stored.step,
        )
    with accelerate.init_empty_weights(include_buffers=False):
        model = found.from_config(config)
    tensors = stored.tensors(part, how)
    model._fix_state_dict_keys_on_load(tensors)
    _cast(model, tensors, how.dtype)
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    if missing:
        raise Corrupt(
            f"step {stored.step} lacks '{missing[0]}' of {name}", key=missing[0], step=stored.step
        )
    if how.device is not None:
        model.to(how.device)  # the buffers that are not stored
    return model.eval()


def _cast(model: Any, tensors: dict[str, torch.Tensor], dtype: Any) -> None:
    """Converts floating-point tensors to `dtype`, or to the dtype of the new model."""
    kept = model._keep_in_fp32_modules or []
    empty = model.state_dict()
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or name not in empty:
            continue
        wanted = dtype or empty[name].dtype
        if dtype is not None and not set(name.split(".")).isdisjoint(kept):
            wanted = torch.float32
        tensors[name] = tensor.to(wanted)
