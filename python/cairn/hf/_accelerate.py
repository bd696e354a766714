"""`use_store`: the states that accelerate saves in a store.

The hooks of `Accelerator.save_state` see the weights of the models. Optimizers, schedulers and
random states, which are most of the bytes, would remain pickles in a folder, and the two would not
be saved together. So the two methods of one Accelerator object are replaced, and call these hooks.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from cairn._base.closing import Closing
from cairn.errors import Invalid, NotFound
from cairn._tensors.random_states import rng_state, set_rng_state
from cairn.store import open as open_store
from cairn.torch import Saver


def use_store(
    accelerator: Any, address: str | os.PathLike[str], **options: Any
) -> AcceleratorSaves:
    """Lets ``accelerator.save_state`` and ``load_state`` write to and read from a store.

        with cairn.hf.use_store(accelerator, "runs/sft", keep_last=2):
            accelerator.save_state("checkpoints/step_100")        # is step 100 of the store
            accelerator.load_state("checkpoints/step_100")        # load_state(): the latest

    A step contains all models, optimizers, schedulers, the gradient scaler, objects that were
    registered for checkpointing, and the random states of all ranks. It is saved in the background.
    The name that the methods take only gives the number of the step, its last digits; no folder is
    created. Without a name, a save has the number ``accelerator.save_iteration``. Hooks that are
    registered with the accelerator are called: a hook may change ``weights``, and what it removes
    is not saved.

    Args:
        accelerator: the ``Accelerator``, which has prepared its objects when it saves or loads.
        address: the store, which is created if it does not exist.
        options: as for :class:`cairn.torch.Saver`, without ``every`` and ``signals``.

    Returns:
        A context manager, which waits for the last save and closes the store.

    Raises:
        Invalid: the accelerator uses FSDP, DeepSpeed or Megatron-LM. Other errors: see
            :func:`cairn.open`.
    """
    return AcceleratorSaves(accelerator, address, options)


class AcceleratorSaves(Closing):
    """The connection of an ``Accelerator`` with a store, which :func:`use_store` returns.

    Threads: the thread of the training. With several ranks (DDP), each rank does the same.
    """

    def __init__(
        self, accelerator: Any, address: str | os.PathLike[str], options: dict[str, Any]
    ) -> None:
        kind = str(accelerator.distributed_type.value)
        if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
            raise Invalid(f"use_store does not support {kind}")
        for name in ("every", "signals"):
            if name in options:
                raise Invalid(f"{name}= is not an option here: save_state decides when to save")
        self._accelerator = accelerator
        self._store = open_store(address, mode="a")
        self._base = self._store.opened.number(options.get("base"))
        self._saver = Saver(self._store, every=1, signals=(), **options)
        accelerator.save_state = self.save_state
        accelerator.load_state = self.load_state

    def steps(self) -> list[int]:
        """The numbers of the steps in the store, ascending, after a running save; without the
        ``base`` of the run."""
        self._store.opened.wait_for_last_save()
        return [step for step in self._store.steps() if step != self._base]

    def save_state(self, output_dir: str | None = None, **options: Any) -> str:
        """Replaces the method of the accelerator. Returns the address of the step.

        Raises Invalid if ``output_dir`` does not end in a number, and what
        :meth:`cairn.torch.Saver.step` raises.
        """
        accelerator = self._accelerator
        step = accelerator.save_iteration if output_dir is None else _number_of(output_dir)
        options.pop("safe_serialization", None)
        if options:
            raise Invalid(f"save_state to a store has no options {sorted(options)}")
        self._saver.step(step, self._state(output_dir))
        accelerator.project_configuration.iteration += 1
        return f"{self._store.address}@{step}"

    def load_state(self, input_dir: str | None = None, **options: Any) -> None:
        """Replaces the method of the accelerator; without ``input_dir``, loads the latest step.
        Waits for a running save.

        Raises NotFound if there is no such step, Invalid if the accelerator has other objects than
        the one that saved it, and what :meth:`cairn.Store.load` raises.
        """
        if options:
            raise Invalid(f"load_state from a store has no options {sorted(options)}")
        accelerator = self._accelerator
        self._store.opened.wait_for_last_save()
        line = self._store.opened.tiers.line(base=self._base) if input_dir is None else []
        step = next(iter(line), None) if input_dir is None else _number_of(input_dir)
        if step is None:
            raise NotFound(f"{self._store!r} has no step: call save_state first")
        models = list(accelerator._models)
        for hook in accelerator._load_model_state_pre_hook.values():
            hook(models, input_dir)
        stored = self._store.read(["!models"], step)
        self._check_same_objects(stored, step)
        target = {"models": {str(i): _weights_of(model) for i, model in enumerate(models)}}
        self._store.load(target, step, keys=["models"])
        for name, objects in self._objects().items():
            for i, one in enumerate(objects):
                one.load_state_dict(stored[name][str(i)])
        accelerator.step = stored["step"]
        rank = str(accelerator.process_index)
        if rank in stored["rng"]:
            set_rng_state(stored["rng"][rank])

    def close(self) -> None:
        """Waits for a running save and closes the store. Raises the error of that save."""
        try:
            self._saver.close()
        finally:
            self._store.close()

    def _close_after(self, error: BaseException) -> None:
        for one in (self._saver, self._store):
            one.__exit__(type(error), error, None)

    def _objects(self) -> dict[str, list[Any]]:
        """All objects but the models, by their kind."""
        accelerator = self._accelerator
        if any(getattr(one, "use_stateful_dataloader", False) for one in accelerator._dataloaders):
            raise Invalid(
                "use_store does not support use_stateful_dataloader; register the loader with "
                "accelerator.register_for_checkpointing"
            )
        return {
            "optimizers": accelerator._optimizers,
            "schedulers": accelerator._schedulers,
            "scalers": [] if accelerator.scaler is None else [accelerator.scaler],
            "custom": accelerator._custom_objects,
        }

    def _state(self, output_dir: str | None) -> dict[str, Any]:
        accelerator = self._accelerator
        weights = [_weights_of(model) for model in accelerator._models]
        for hook in accelerator._save_model_state_pre_hook.values():
            hook(accelerator._models, weights, output_dir)
        state: dict[str, Any] = {"models": {str(i): one for i, one in enumerate(weights)}}
        for name, objects in self._objects().items():
            state[name] = {str(i): one.state_dict() for i, one in enumerate(objects)}
        state["step"] = accelerator.step
        state["rng"] = {str(accelerator.process_index): rng_state()}
        return state

    def _check_same_objects(self, stored: dict[str, Any], step: int) -> None:
        if "rng" not in stored:
            raise Invalid(
                f"step {step} was not saved by accelerate: name a step of save_state, or load "
                "this one with Store.load",
                step=step,
            )
        for name, objects in self._objects().items():
            found = len(stored.get(name, ()))
            if found != len(objects):
                raise Invalid(
                    f"step {step} has {found} {name}, but the accelerator has {len(objects)}: "
                    "prepare or register the same objects before load_state",
                    step=step,
                )


def _weights_of(model: Any) -> dict[str, Any]:
    """The tensors of a model, by the names that they have without DDP."""
    wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    return dict((model.module if wrapped else model).state_dict())


def _number_of(name: str) -> int:
    digits = re.search(r"([0-9]+)[^0-9]*$", os.path.basename(os.path.normpath(name)))
    if digits is None:
        raise Invalid(f"'{name}' has no number, which would be that of the step")
    return int(digits.group(1))
