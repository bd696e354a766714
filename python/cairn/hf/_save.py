"""`save_pretrained`: saves a model, an adapter or a pipeline as a step."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cairn._base.addresses import parse_address
from cairn._by_address import save_by_address
from cairn.errors import Invalid
from cairn.hf._base_step import BASE_FILE, address_in, base_of
from cairn.hf._layout import FILES, WEIGHTS, Weights, make_state, read_folder
from cairn.store import Store

if TYPE_CHECKING:
    from cairn.reports import SaveReport


def save_pretrained(
    model: Any,
    target: str | os.PathLike[str] | Store,
    step: int | None = None,
    *,
    tokenizer: Any = None,
    base: Any = None,
    **options: Any,
) -> SaveReport:
    """Saves a model, with all that ``from_pretrained`` needs, as a step of a store.

    Weights have the names that ``model.save_pretrained`` gives them; of tied weights, those are
    saved that it saves. In a multi-rank store every rank calls it.

    Args:
        model: a model of transformers, a ``PeftModel``, or a model or pipeline of diffusers.
        target: ``STORE@STEP``, or a store that is open with mode ``"a"``.
        step: number of the step, if ``target`` does not contain it.
        tokenizer: a tokenizer, a processor, or several: objects whose ``save_pretrained`` writes
            files. They are kept with the step.
        base: for a ``PeftModel``: the address of the step that has its base model, or its number if
            it is in this store. By default that from which :func:`from_pretrained` loaded the base
            model.
        options: as for :meth:`cairn.Store.save`, such as ``overwrite`` and ``tags``.

    Raises:
        Invalid: no step is given, or the model is of another kind, quantized, or an adapter whose
            base is not in a store. Other errors: see :func:`cairn.open` and
            :meth:`cairn.Store.save`.
    """
    if isinstance(target, Store):
        if step is None:
            raise Invalid("the number of the step is missing: save_pretrained(model, store, step)")
        state = model_state(model, tokenizer=tokenizer, base=address_in(target.address, base))
        return target.save(step, state, **options)
    address = parse_address(target)
    number = step if address.step is None else address.step
    if isinstance(number, str) or number is None or step not in (None, number):
        raise Invalid(f"'{target}' names no new step: write STORE@STEP, with the step as a number")
    # First, because it may raise.
    state = model_state(model, tokenizer=tokenizer, base=address_in(address.store, base))
    return save_by_address(address.store, number, state, **options)


def model_state(model: Any, *, tokenizer: Any = None, base: Any = None) -> dict[str, Any]:
    """The state of a model with its files. The tensors belong to the model, and are not copies."""
    if is_instance(model, "peft", "PeftModel"):
        weights, files = _adapter(model, base)
    elif base is not None:
        raise Invalid("base= is the base of an adapter; this is not a PeftModel")
    elif is_instance(model, "diffusers", "DiffusionPipeline"):
        weights, files = _pipeline(model)
    elif is_instance(model, "diffusers", "ModelMixin"):
        weights, files = [Weights(DIFFUSERS_STEM, "", model.state_dict())], _diffusers_files(model)
    elif is_instance(model, "transformers", "PreTrainedModel"):
        weights = [Weights("model", "", transformers_weights(model))]
        files = transformers_files(model)
    else:
        raise Invalid(
            f"a {type(model).__name__} is neither a model of transformers or diffusers, nor a "
            "PeftModel or a pipeline; save its state_dict() with Store.save"
        )
    return make_state(weights, {**files, **tokenizer_files(tokenizer)})


def describe(model: Any, key: str = "model", *, tokenizer: Any = None) -> dict[str, Any]:
    """The entries that the state of a training loop needs so that its steps are models, too.

        described = cairn.hf.describe(model, tokenizer=tokenizer)
        saver.step(step, lambda: {"model": model, "optimizer": optimizer, **described})

    Such a step can be opened by :func:`from_pretrained` and exported by ``kv-admin export --format
    hf``, which leave out the other keys. ``Saver.resume`` ignores what this function returns. The
    model may be sharded, also after it was described.

    Args:
        model: a model of transformers.
        key: the key in the state below which the tensors of ``model.state_dict()`` are saved.
        tokenizer: as in :func:`save_pretrained`.

    Returns:
        The values of the keys ``__files__`` and ``__weights__``. Call it again if the configuration
        of the model changes.

    Raises:
        Invalid: the model is of another kind, or is quantized.
    """
    if not is_instance(model, "transformers", "PreTrainedModel"):
        raise Invalid(
            f"a {type(model).__name__} is not a model of transformers: save it with "
            "save_pretrained, and the state of its training with Saver"
        )
    if not key:
        raise Invalid("the key of the model in the state is empty")
    _check_unquantized(model)
    files = {**transformers_files(model), **tokenizer_files(tokenizer)}
    state = make_state([Weights("model", key, {})], files)
    return {name: state[name] for name in (FILES, WEIGHTS)}


DIFFUSERS_STEM = "diffusion_pytorch_model"


def is_instance(value: Any, library: str, name: str) -> bool:
    """Whether `value` is an instance of a class of a library, which is not imported for that."""
    found = getattr(sys.modules.get(library), name, None)
    return isinstance(found, type) and isinstance(value, found)


def transformers_weights(model: Any, original: bool = True) -> dict[str, torch.Tensor]:
    """The tensors that transformers saves of a model, by the names in its files; without
    `original`, by the names of the model."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    _check_unquantized(model)
    state = dict(model.state_dict())
    for key in model._keys_to_ignore_on_save or ():
        state.pop(key, None)
    state = remove_tied_weights_from_state_dict(state, model)
    return revert_weight_conversion(model, state) if original else state


def _check_unquantized(model: Any) -> None:
    if getattr(model, "hf_quantizer", None) is not None:
        raise Invalid(
            "the model is quantized: save it with its own save_pretrained, and import the "
            "directory with kv-admin import --format hf"
        )


def transformers_files(model: Any) -> dict[str, bytes]:
    """The configuration of a model, and its code if it is not part of transformers."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, state_dict={})  # also sets what the configuration states
        return read_folder(folder)


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """The files of a tokenizer or processor, or of several."""
    if tokenizer is None:
        return {}
    several = tokenizer if isinstance(tokenizer, (list, tuple)) else [tokenizer]
    with tempfile.TemporaryDirectory() as folder:
        for one in several:
            one.save_pretrained(folder)
        return read_folder(folder)


def _adapter(model: Any, base: Any) -> tuple[list[Weights], dict[str, bytes]]:
    from safetensors.torch import load_file

    reference = base_of(model, base)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # an adapter is small
        weights = []
        for path in sorted(Path(folder).rglob("*.safetensors")):
            stem = path.relative_to(folder).with_suffix("").as_posix()
            weights.append(Weights(stem, stem.rpartition("/")[0], load_file(path)))
        return weights, {**read_folder(folder), BASE_FILE: reference.encode()}


def _diffusers_files(model: Any) -> dict[str, bytes]:
    _check_unquantized(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_config(folder)
        return read_folder(folder)


def _pipeline(pipeline: Any) -> tuple[list[Weights], dict[str, bytes]]:
    weights: list[Weights] = []
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, bytes] = {}
        for name, part in pipeline.components.items():
            if is_instance(part, "diffusers", "ModelMixin"):
                weights.append(Weights(f"{name}/{DIFFUSERS_STEM}", name, part.state_dict()))
                files.update(_below(name, _diffusers_files(part)))
            elif is_instance(part, "transformers", "PreTrainedModel"):
                weights.append(Weights(f"{name}/model", name, transformers_weights(part)))
                files.update(_below(name, transformers_files(part)))
            elif isinstance(part, torch.nn.Module):
                raise Invalid(
                    f"the part '{name}' of the pipeline is a {type(part).__name__}, "
                    "which is neither a model of diffusers nor of transformers"
                )
            elif callable(getattr(part, "save_pretrained", None)):
                part.save_pretrained(os.path.join(folder, name))
        pipeline.save_config(folder)
        return weights, {**files, **read_folder(folder)}


def _below(name: str, files: dict[str, bytes]) -> Iterable[tuple[str, bytes]]:
    return ((f"{name}/{file}", data) for file, data in files.items())
