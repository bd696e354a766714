"""`from_pretrained`: creates a model on the meta device and gives it the tensors of a step."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cairn._base.addresses import parse_address
from cairn.errors import Corrupt, Invalid, NotFound
from cairn.hf._base_step import (
    BASE_FILE,
    BaseStep,
    address_in,
    decode_base,
    latest_of,
    remember_base,
    remembered_base,
    step_of,
)
from cairn.hf._layout import FILES, WEIGHTS, decode_files, decode_prefixes, write_folder
from cairn.store import Store
from cairn.store import open as open_store

if TYPE_CHECKING:
    from cairn._base.progress import Progress


class Loading(NamedTuple):
    """How a model is loaded; the arguments of `from_pretrained`."""

    device: Any = None
    dtype: Any = None
    mmap: bool = False
    model_class: Any = None
    trust_remote_code: bool = False


class StoredModel:
    """A step that contains a model, in a store that is open.

    Attributes:
        files: contents of the files, by name.
        prefixes: the key below which the weights of each folder are, by the folder.
    """

    def __init__(self, store: Store, step: int | str | None) -> None:
        """Reads the files. Raises Invalid if the step does not contain a model."""
        self._store = store
        self.step = latest_of(store) if step is None else int(store.opened.number(step) or 0)
        present = store.keys(self.step, [WEIGHTS])
        if WEIGHTS not in present:
            raise Invalid(
                f"step {self.step} of {store.address} is not a model: it has no '{WEIGHTS}'. "
                "States that contain cairn.hf.describe(model) are models, too. Store.load loads "
                "the tensors of any step into a model that you create",
                step=self.step,
            )
        state = store.read(["__weights__", "__files__"], self.step)
        self.files = decode_files(state.get(FILES, {}), self.step)
        self.prefixes = decode_prefixes(state[WEIGHTS], self.step)

    @property
    def origin(self) -> BaseStep:
        return step_of(self._store, self.step)

    def json(self, name: str) -> dict[str, Any]:
        """A file of JSON. Raises Corrupt if it is not an object, and Invalid if it is missing."""
        if name not in self.files:
            raise Invalid(
                f"step {self.step} has no '{name}': save the model with cairn.hf.save_pretrained",
                step=self.step,
            )
        try:
            value = json.loads(self.files[name])
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Corrupt(f"step {self.step}: '{name}' is not a JSON object", step=self.step)
        return value

    def tensors(self, folder: str, how: Loading) -> dict[str, torch.Tensor]:
        """The weights in a folder of the directory, by their names."""
        if folder not in self.prefixes:
            found = ", ".join(f"'{each}'" for each in self.prefixes)
            raise Invalid(
                f"step {self.step} has no weights in '{folder}': it has weights in {found}",
                step=self.step,
            )
        prefix = self.prefixes[folder]
        patterns = [_escaped(prefix)] if prefix else [f"!{FILES}", f"!{WEIGHTS}"]
        others = {other for other in self.prefixes.values() if other and other != prefix}
        patterns += [f"!{_escaped(other)}" for other in others if other.startswith(prefix)]
        try:
            read = self._store.read(
                patterns, self.step, device=how.device, mmap=how.mmap, flat=True
            )
        except NotFound:
            raise Invalid(
                f"step {self.step} has no tensors below '{prefix}', where '{WEIGHTS}' states that "
                "its weights are: the key of cairn.hf.describe is that of the model in the state",
                step=self.step,
            ) from None
        start = len(prefix) + 1 if prefix else 0
        return {name[start:]: tensor for name, tensor in read.items() if torch.is_tensor(tensor)}

    @contextmanager
    def folder(self, below: str = "") -> Iterator[str]:
        """A temporary directory with the files, or the files below a folder."""
        start = f"{below}/" if below else ""
        chosen = {
            name[len(start) :]: data for name, data in self.files.items() if name.startswith(start)
        }
        with tempfile.TemporaryDirectory() as folder:
            write_folder(folder, chosen)
            yield folder


def _escaped(key: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in key)


@contextmanager
def open_model(
    address: str | os.PathLike[str], step: int | str | None = None, progress: Progress = False
) -> Iterator[StoredModel]:
    """Opens the model at ``STORE[@STEP]`` for this process alone."""
    parsed = parse_address(address)
    if step is not None and parsed.step is not None:
        raise Invalid(f"'{address}' names a step, and step={step!r} another one")
    with open_store(parsed.store, alone=True, progress=progress) as store:
        yield StoredModel(store, parsed.step if step is None else step)


def from_pretrained(
    address: str | os.PathLike[str],
    step: int | str | None = None,
    *,
    device: Any = None,
    dtype: Any = None,
    mmap: bool = False,
    model_class: Any = None,
    base: Any = None,
    trust_remote_code: bool = False,
    progress: Progress = False,
    **options: Any,
) -> Any:
    """Loads the model, the adapter with its base model, or the pipeline at ``STORE[@STEP]``.

    The model is created on the meta device from the stored configuration, so that no memory is
    initialized twice, and receives the tensors of the step. Buffers that are not stored, such as
    rotary frequencies, are computed as the library computes them. Each rank of a job that calls it
    loads a complete model by itself.

    Args:
        address: the step, by number or tag; without either, the latest.
        step: its number or tag, if ``address`` does not contain it.
        device: where the tensors are read to; by default host memory.
        dtype: of the parameters; by default the configuration's (transformers), or float32
            (diffusers), as in these libraries.
        mmap: tensors are views of the mapped store where they can be (:meth:`cairn.Store.read`).
        model_class: a class with ``from_pretrained``, such as ``AutoModel``; by default the class
            that the configuration names.
        base: for an adapter: the address of its base model, the number of a step of this store, or
            the model itself, if it is not where it was. The step must be the recorded one or a copy
            of it.
        trust_remote_code: runs code that is kept with the step. Never do this with steps whose
            origin you do not trust.
        progress: shows how much of the tensors was read, as in :func:`cairn.open`.
        options: are passed to ``from_pretrained`` of the library.

    Returns:
        The model in evaluation mode.

    Raises:
        Invalid: the step does not contain a model, or names a class that the library does not have;
            or ``model_class`` is not a class with ``from_pretrained``.
        NotFound: the step, or the base of an adapter, does not exist.
        Conflict: the base of an adapter is not the recorded one.
        Corrupt: the bytes differ from the written bytes.
    """
    how = Loading(device, dtype, mmap, model_class, trust_remote_code)
    if model_class is not None and not callable(getattr(model_class, "from_pretrained", None)):
        raise Invalid(f"model_class={model_class!r} is not a class with from_pretrained")
    with open_model(address, step, progress) as stored:
        if "adapter_config.json" in stored.files:
            return _adapter(stored, base, how, options)
        if base is not None:
            raise Invalid(f"step {stored.step} is not an adapter: base= has no meaning")
        if "model_index.json" in stored.files or "_class_name" in stored.json("config.json"):
            return _load_diffusers(stored, how, options)
        model = _load_transformers(stored, "", how, options)
        remember_base(model, stored.origin)
        return model


def _load_transformers(
    stored: StoredModel, part: str, how: Loading, options: dict[str, Any]
) -> Any:
    """The model of transformers in a folder of the directory."""
    import transformers

    with stored.folder(part) as folder:
        config = options.pop("config", None) or transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=how.trust_remote_code
        )
        found = how.model_class or _class_of(config, folder, stored.step, how.trust_remote_code)
        if hasattr(found, "_model_mapping"):  # an Auto class opens nothing but a directory
            from transformers.models.auto.auto_factory import _get_model_class

            found = _get_model_class(config, found._model_mapping)
        if "generation_config.json" in os.listdir(folder):
            options.setdefault(
                "generation_config", transformers.GenerationConfig.from_pretrained(folder)
            )
    if how.device is not None:
        options.setdefault("device_map", {"": how.device})
    tensors = stored.tensors(part, how)
    return found.from_pretrained(
        None, config=config, state_dict=tensors, dtype=how.dtype or "auto", **options
    )


def _class_of(config: Any, folder: str, step: int, trust_remote_code: bool) -> Any:
    """The class that a configuration names: one of transformers, or of the code in the folder."""
    import transformers

    remote = getattr(config, "auto_map", None) or {}
    references = [name for auto, name in remote.items() if auto.startswith("AutoModel")]
    if trust_remote_code and references:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(references[0], folder)
    names = getattr(config, "architectures", None) or [None]
    found = getattr(transformers, str(names[0]), None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    raise Invalid(
        f"step {step}: transformers has no model class {names[0]!r}; pass model_class=, or "
        "trust_remote_code=True if the code of the model is kept with the step and you trust it",
        step=step,
    )


def _load_diffusers(stored: StoredModel, how: Loading, options: dict[str, Any]) -> Any:
    """The model or the pipeline that the step contains."""
    if "model_index.json" in stored.files:
        return _pipeline(stored, how, options)
    if options:
        raise Invalid(f"unknown options for a model of diffusers: {sorted(options)}")
    return _diffusers_model(stored, "", how)


def _pipeline(stored: StoredModel, how: Loading, options: dict[str, Any]) -> Any:
    import diffusers

    parts = {}
    each = how._replace(model_class=None)
    for name, entry in stored.json("model_index.json").items():
        is_part = isinstance(entry, list) and len(entry) == 2 and all(entry)
        if name in options or not is_part or name not in stored.prefixes:
            continue  # the pipeline loads parts without weights from their files
        library, class_name = entry
        if library == "diffusers":
            parts[name] = _diffusers_model(stored, name, each)
        elif library == "transformers":
            dtype = how.dtype or torch.float32
            parts[name] = _load_transformers(stored, name, each._replace(dtype=dtype), {})
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


def _diffusers_model(stored: StoredModel, part: str, how: Loading) -> Any:
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


def _adapter(stored: StoredModel, base: Any, how: Loading, options: dict[str, Any]) -> Any:
    import peft
    from safetensors.torch import save_file

    if how.model_class is not None:
        raise Invalid("the class of an adapter cannot be chosen", step=stored.step)
    recorded = None
    if BASE_FILE in stored.files:
        recorded = decode_base(stored.files[BASE_FILE], stored.step)
    if not isinstance(base, torch.nn.Module):
        base = _base_model(stored, base, recorded, how)
    elif recorded is not None and remembered_base(base) is not None:
        recorded.check_same(remembered_base(base))
    with stored.folder() as folder:
        # peft opens directories only. Adapters are small.
        tensors = stored.tensors("", Loading())
        save_file(tensors, os.path.join(folder, "adapter_model.safetensors"), {"format": "pt"})
        if how.device is not None:
            options.setdefault("torch_device", str(how.device))
        return peft.PeftModel.from_pretrained(base, folder, **options)


def _base_model(stored: StoredModel, base: Any, recorded: BaseStep | None, how: Loading) -> Any:
    """Loads the base of an adapter after checking that it is the recorded one."""
    if base is None and recorded is None:
        raise Invalid(
            f"step {stored.step} does not record its base, as an adapter that was imported from "
            "elsewhere: give base='STORE@STEP', or base=model",
            step=stored.step,
        )
    address = recorded.address if base is None else address_in(stored.origin.store, base)
    with open_model(address) as found:
        if recorded is not None:
            recorded.check_same(found.origin)
        model = _load_transformers(found, "", how, {})
        remember_base(model, found.origin)
        return model


@contextmanager
def files(address: str | os.PathLike[str], step: int | str | None = None) -> Iterator[str]:
    """A temporary directory with the files of the step at ``STORE[@STEP]``, without its weights.

        with cairn.hf.files("runs/sft@100") as folder:
            processor = AutoProcessor.from_pretrained(folder)

    Raises Invalid if the step does not contain a model, and what :func:`cairn.open` raises.
    """
    with open_model(address, step) as stored, stored.folder() as folder:
        yield folder


def load_tokenizer(
    address: str | os.PathLike[str], step: int | str | None = None, **options: Any
) -> Any:
    """The tokenizer that is kept with the step at ``STORE[@STEP]``.

    ``options`` are passed to ``AutoTokenizer.from_pretrained``; ``trust_remote_code`` is False
    unless it is given. Raises NotFound if the step has no tokenizer, and what :func:`files` raises.
    """
    import transformers

    options.setdefault("trust_remote_code", False)
    with open_model(address, step) as stored, stored.folder() as folder:
        try:
            return transformers.AutoTokenizer.from_pretrained(folder, **options)
        except (OSError, ValueError) as error:
            if not any("token" in name or name.startswith("vocab") for name in stored.files):
                raise NotFound(
                    f"step {stored.step} has no tokenizer: save_pretrained and describe keep one "
                    "that is passed as tokenizer=",
                    step=stored.step,
                ) from error
            raise
