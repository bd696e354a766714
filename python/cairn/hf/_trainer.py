"""`CairnCallback`: the checkpoints of transformers.Trainer in a store.

Callbacks of a Trainer see when it saves, but neither replace what it writes nor what it reads. So
the callback replaces the methods of one Trainer object that do this: `_save_checkpoint`, and the
four that load the parts of a checkpoint. The Trainer continues to decide when to save, and to skip
data when it resumes, for which it reads the file trainer_state.json of a directory.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from cairn._base.addresses import absolute_address
from cairn._base.closing import Closing
from cairn._save.options import recordable_metrics
from cairn.errors import Invalid
from cairn.hf._base_step import BASE_FILE, remembered_base
from cairn.hf._layout import FILES, Weights, make_state, read_folder
from cairn._tensors.random_states import rng_state, set_rng_state
from cairn.hf._save import is_instance, tokenizer_files, transformers_files, transformers_weights
from cairn.store import Store
from cairn.store import open as open_store
from cairn.torch import Saver

_MODEL = "model"


class CairnCallback(Closing, TrainerCallback):
    """Saves the checkpoints of a ``transformers.Trainer`` to a store, instead of to folders.

        with CairnCallback("runs/sft", keep_last=2) as checkpoints:
            checkpoints.attach(trainer)
            trainer.train(resume_from_checkpoint=checkpoints.latest())

    A step contains the model, optimizer, scheduler, gradient scaler, the random states of all
    ranks, the state of the Trainer, and the files of the model and its tokenizer. It is saved in
    the background, when ``save_strategy`` and ``save_steps`` ask for it, as the step with the
    number ``global_step``. :func:`from_pretrained` and ``kv-admin export --format hf`` read the
    model of a step. For a ``PeftModel``, only the adapter is saved.

    Metrics of an evaluation at the same step are recorded with the step. ``save_total_limit`` is
    the default of ``keep_last``.

    Threads: the thread of the Trainer. With several ranks (DDP), each rank does the same.

    Args:
        address: the store, which is created if it does not exist.
        options: as for :class:`cairn.torch.Saver`, without ``every`` and ``signals``.
    """

    def __init__(self, address: str | os.PathLike[str], **options: Any) -> None:
        for name in ("every", "signals"):
            if name in options:
                raise Invalid(f"{name}= is not an option here: the Trainer decides when to save")
        self._address = absolute_address(address)
        self._options = options
        self._trainer: Any = None
        self._store: Store | None = None
        self._saver: Saver | None = None
        self._files: dict[str, bytes] | None = None
        self._base: int | None = None
        self._resume_step = 0
        self._resume_folder: tempfile.TemporaryDirectory | None = None

    def attach(self, trainer: Any) -> None:
        """Opens the store, and lets this Trainer save to it. Call it once, before ``train``.

        Raises:
            Invalid: the Trainer uses FSDP or DeepSpeed, or an option that needs its folders:
                ``load_best_model_at_end``, ``save_only_model``, or pushing checkpoints to a hub.
                Other errors: see :func:`cairn.open`.
        """
        if self._trainer is not None:
            raise Invalid("the callback is attached to a Trainer already")
        _check_supported(trainer)
        self._store = open_store(self._address, mode="a")
        self._base = self._store.opened.number(self._options.get("base"))
        self._trainer = trainer
        self._options.setdefault("keep_last", trainer.args.save_total_limit or 0)
        trainer.add_callback(self)
        trainer._save_checkpoint = self._save_checkpoint
        trainer._load_from_checkpoint = self._load_from_checkpoint
        trainer._load_optimizer_and_scheduler = self._load_optimizer_and_scheduler
        trainer._load_scaler = self._load_scaler
        trainer._load_rng_state = self._load_rng_state

    def latest(self, step: int | None = None) -> str | None:
        """The value to pass to ``trainer.train(resume_from_checkpoint=...)``.

        Args:
            step: the step to resume from; by default the latest. Later steps remain in the store:
                pass ``overwrite=True`` to the constructor to replace them.

        Returns:
            The path of a temporary directory that stands for the step; None if there is no step but
            the ``base`` of the run.

        Raises:
            Invalid: the step was not saved by a Trainer, or there is no Trainer yet.
            NotFound: there is no such step.
        """
        store = self._opened()
        store.opened.wait_for_last_save()
        line = store.opened.tiers.line(base=self._base) if step is None else [step]
        number = next(iter(line), None)
        if number is None:
            return None
        files = store.read([FILES], number).get(FILES, {})
        if TRAINER_STATE_NAME not in files:
            raise Invalid(
                f"step {number} was not saved by a Trainer. If the run starts from it, pass "
                f"base={number} to CairnCallback",
                step=number,
            )
        self._resume_step = number
        self._resume_folder = tempfile.TemporaryDirectory(prefix=f"checkpoint-{number}-")
        state = files[TRAINER_STATE_NAME]
        data = state if isinstance(state, bytes) else state.numpy().tobytes()
        (Path(self._resume_folder.name) / TRAINER_STATE_NAME).write_bytes(data)
        return self._resume_folder.name

    def close(self) -> None:
        """Waits for a running save and closes the store. Raises the error of that save."""
        try:
            if self._saver is not None:
                self._saver.close()
        finally:
            self._saver = None
            if self._resume_folder is not None:
                self._resume_folder.cleanup()
            if self._store is not None:
                self._store.close()

    def _close_after(self, error: BaseException) -> None:
        for one in (self._saver, self._store):
            if one is not None:
                one.__exit__(type(error), error, None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Part of the interface of callbacks."""
        self._opened()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits for the last save, so that its error ends the training."""
        if self._saver is not None:
            saver, self._saver = self._saver, None
            saver.close()

    def _opened(self) -> Store:
        if self._store is None:
            raise Invalid("call attach(trainer) first")
        return self._store

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Replaces the method of the Trainer."""
        trainer = self._trainer
        if trial is None:
            trainer.store_flos()
        step = trainer.state.global_step
        if self._saver is None:
            self._saver = Saver(self._opened(), every=1, signals=(), **self._options)
        best = self._options.get("keep_best", ())
        metrics = recordable_metrics(_metrics_at(trainer.state, step), best)
        self._saver.step(step, self._state, metrics=metrics)

    def _state(self) -> dict[str, Any]:
        trainer = self._trainer
        files = {**self._model_files(), TRAINER_STATE_NAME: _trainer_state(trainer)}
        stem = "adapter_model" if is_instance(trainer.model, "peft", "PeftModel") else "model"
        weights = Weights(stem, _MODEL, _weights_of(trainer.model))
        state = make_state([weights], files)
        state["optimizer"] = trainer.optimizer.state_dict()
        state["scheduler"] = trainer.lr_scheduler.state_dict()
        scaler = getattr(trainer.accelerator, "scaler", None)
        if scaler is not None:
            state["scaler"] = scaler.state_dict()
        state["rng"] = {str(trainer.args.process_index): rng_state()}
        return state

    def _model_files(self) -> dict[str, bytes]:
        """The files of the model and the tokenizer, which do not change during the training."""
        if self._files is None:
            trainer = self._trainer
            self._files = _files_of(trainer.model)
            if callable(getattr(trainer.processing_class, "save_pretrained", None)):
                self._files.update(tokenizer_files(trainer.processing_class))
        return self._files

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Replaces the method of the Trainer: fills the weights in place."""
        self._check_is_ours(resume_from_checkpoint)
        model = self._trainer.model if model is None else model
        if is_instance(model, "peft", "PeftModel"):
            import peft

            stored = self._opened().read([_MODEL], self._resume_step)[_MODEL]
            peft.set_peft_model_state_dict(model, stored)
            return
        target = {_MODEL: _weights_of(model)}
        self._opened().load(target, self._resume_step, keys=[_MODEL])

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._check_is_ours(checkpoint)
            stored = self._opened().read(["optimizer", "scheduler"], self._resume_step)
            self._trainer.optimizer.load_state_dict(stored["optimizer"])
            self._trainer.lr_scheduler.load_state_dict(stored["scheduler"])

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        if checkpoint is not None and scaler is not None:
            stored = self._opened().read(["scaler"], self._resume_step)
            scaler.load_state_dict(stored["scaler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Ranks that there were not before keep the state that their seed has given them, as in
        the Trainer's own checkpoints."""
        if checkpoint is None:
            return
        rank = str(self._trainer.args.process_index)
        stored = self._opened().read(["rng"], self._resume_step)["rng"]
        if rank in stored:
            set_rng_state(stored[rank])

    def _check_is_ours(self, checkpoint: str) -> None:
        if self._resume_folder is None or checkpoint != self._resume_folder.name:
            raise Invalid(
                f"'{checkpoint}' is not a step of the store: pass the result of latest() as "
                "resume_from_checkpoint"
            )


def _check_supported(trainer: Any) -> None:
    args = trainer.args
    refused = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "a model that transformers distributes": getattr(
            trainer, "is_distributed_loading_by_transformers", False
        ),
        "load_best_model_at_end (use keep_best= and from_pretrained)": args.load_best_model_at_end,
        "save_only_model": args.save_only_model,
        "push_to_hub during training": args.push_to_hub and args.hub_strategy != "end",
    }
    for what, is_used in refused.items():
        if is_used:
            raise Invalid(f"a CairnCallback does not support {what}")


def _weights_of(model: Any) -> dict[str, Any]:
    """The tensors that are saved of a model, by the names that it has for them."""
    if is_instance(model, "peft", "PeftModel"):
        import peft

        return peft.get_peft_model_state_dict(model)
    if is_instance(model, "transformers", "PreTrainedModel"):
        return transformers_weights(model, original=False)
    return dict(model.state_dict())


def _files_of(model: Any) -> dict[str, bytes]:
    if is_instance(model, "peft", "PeftModel"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            files = read_folder(folder)
        base = remembered_base(model.get_base_model())
        return files if base is None else {**files, BASE_FILE: base.encode()}
    if is_instance(model, "transformers", "PreTrainedModel"):
        return transformers_files(model)
    return {}


def _trainer_state(trainer: Any) -> bytes:
    """The file trainer_state.json, as the Trainer writes it."""
    state = trainer.state
    for part in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(part, ExportableState):
            name = type(part).__name__
            if isinstance(state.stateful_callbacks[name], list):
                state.stateful_callbacks[name].append(part.state())
            else:
                state.stateful_callbacks[name] = part.state()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TRAINER_STATE_NAME
        state.save_to_json(str(path))
        return path.read_bytes()


def _metrics_at(state: Any, step: int) -> dict[str, float]:
    """The numbers that an evaluation at this step has returned."""
    for entry in reversed(state.log_history):
        if entry.get("step") != step:
            break
        found = {
            name: float(value)
            for name, value in entry.items()
            if name.startswith("eval_") and isinstance(value, (int, float))
        }
        if found:
            return found
    return {}
