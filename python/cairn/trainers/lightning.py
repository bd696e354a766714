"""Cairn in PyTorch Lightning: a `CheckpointIO` for `ModelCheckpoint`, and a callback with a Saver.

    from cairn.trainers.lightning import CairnCheckpointIO

    trainer = Trainer(plugins=[CairnCheckpointIO()], callbacks=[ModelCheckpoint(save_last=True)])
    trainer.fit(model, ckpt_path="last")
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from lightning_fabric.plugins import CheckpointIO

from cairn._base.addresses import absolute_address, canonical_address, is_directory, parse_address
from cairn._save.options import recordable_metrics
from cairn.errors import Error, Invalid, NotFound
from cairn.store import Store
from cairn.store import open as open_store
from cairn.torch import Saver
from cairn.trainers._pointers import (
    Pointer,
    find_pointer,
    free_step,
    read_pointer,
    write_pointer,
)

_log = logging.getLogger(__name__)


class CairnCheckpointIO(CheckpointIO):
    """Saves the checkpoints of Lightning as steps of one store, which share unchanged chunks.

    Where Lightning expects a checkpoint file, there is a small file that names the store and the
    step. Lightning lists, links and removes these files as its own. The number of a step is the
    global step of the training; if it exists already, the next free number.

    Only the global rank 0 saves, as with Lightning's own plugin. Strategies that do not use a
    ``CheckpointIO`` (sharded FSDP, DeepSpeed) do not use this one either.

    Threads: one thread at a time, such as the training, or the thread of ``AsyncCheckpointIO``.

    Args:
        store: address of the store; by default ``cairn-store`` in the folder of the checkpoint.
        async_: copies the state, and writes it in the background. A checkpoint file exists once its
            step is durable, and no checkpoint is removed before the ones that were saved earlier
            are durable.
        allow_pickle: pickles values of other types, such as objects in ``hparams``.
        options: further arguments of :meth:`cairn.Store.save`, such as ``tuning``.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        async_: bool = False,
        allow_pickle: bool = False,
        **options: Any,
    ) -> None:
        self._address = None if store is None else absolute_address(store)
        self._async = async_
        self._allow_pickle = allow_pickle
        self._options = options
        self._stores: dict[str, Store] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._running: list[Future[None]] = []

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Saves a checkpoint as a new step.

        Raises Invalid for ``storage_options``, or if the checkpoint contains an object that needs
        ``allow_pickle``; and the error of an earlier save in the background.
        """
        if storage_options is not None:
            raise Invalid("storage_options: give the options of saves to CairnCheckpointIO")
        path = Path(path).absolute()
        store = self._writer(self._address or str(path.parent / "cairn-store"))
        self._wait()  # so that it is known which numbers are free
        step = free_step(store, int(checkpoint.get("global_step", 0)))
        options = {"allow_pickle": self._allow_pickle, "note": path.name, **self._options}
        pointer = Pointer(store.address, step)
        if not self._async:
            store.save(step, checkpoint, **options)
            self._point(path, pointer)
            return
        handle = store.save_async(step, checkpoint, **options)
        handle.wait_staged()

        def finish() -> None:
            handle.result()
            self._point(path, pointer)

        self._submit(finish)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads a checkpoint.

        Args:
            path: a checkpoint file that this plugin has written, or ``STORE@STEP``.
            map_location: a device, or its name. Functions and dicts are ignored; the tensors are
                then in host memory, from which Lightning copies them.
            weights_only: True refuses pickles, which are otherwise read with ``allow_pickle``.

        Raises NotFound if there is no such checkpoint, and Corrupt if it is damaged.
        """
        self._wait()
        pointer = _locate(path)
        device = map_location if isinstance(map_location, (str, torch.device)) else None
        allow_pickle = self._allow_pickle and not weights_only
        own = self._stores.get(canonical_address(pointer.store))
        if own is not None:
            return own.read(step=pointer.step, device=device, allow_pickle=allow_pickle)
        with open_store(pointer.store, alone=True) as store:
            return store.read(step=pointer.step, device=device, allow_pickle=allow_pickle)

    def remove_checkpoint(self, path: Any) -> None:
        """Removes a checkpoint file, and its step if no other file in the folder refers to it.

        With ``async_``, this happens after the saves that run now have ended; if one of them fails,
        the checkpoint remains.
        """
        path = Path(path).absolute()
        if self._async and self._running:
            self._submit(lambda: self._remove(path))
        else:
            self._remove(path)

    def teardown(self) -> None:
        """Waits for saves in the background and closes the stores. Raises the error of a save."""
        try:
            self._wait()
        finally:
            stores, self._stores = self._stores, {}
            for store in stores.values():
                store.close()
            if self._worker is not None:
                self._worker.shutdown()
                self._worker = None

    def _writer(self, address: str) -> Store:
        key = canonical_address(address)
        if key not in self._stores:
            if is_directory(address):
                Path(address.removeprefix("file:")).parent.mkdir(parents=True, exist_ok=True)
            self._stores[key] = open_store(address, mode="a", alone=True)
        return self._stores[key]

    def _point(self, path: Path, pointer: Pointer) -> None:
        """Writes a checkpoint file. If it replaces another one, deletes the step of that one."""
        previous = find_pointer(path)
        if path.is_symlink():
            path.unlink()  # do not write into the file that it refers to
        write_pointer(path, pointer)
        if previous is not None:
            self._delete(previous, path)

    def _remove(self, path: Path) -> None:
        if path.is_symlink():
            path.unlink()
            return
        try:
            pointer = read_pointer(path)
        except NotFound:
            return
        except Invalid as error:
            _log.warning("a checkpoint was not removed: %s", error)
            return
        path.unlink()
        self._delete(pointer, path)

    def _delete(self, pointer: Pointer, path: Path) -> None:
        """Deletes a step, unless a file in the folder of `path` refers to it."""
        others = (other for other in path.parent.iterdir() if other.is_file())
        if any(find_pointer(other) == pointer for other in others):
            return
        # A step that cannot be deleted costs only space.
        try:
            self._writer(pointer.store).delete(pointer.step)
        except Error as error:
            _log.warning("step %d of %s was not deleted: %s", pointer.step, path, error)

    def _submit(self, work: Any) -> None:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="cairn-lightning")
        earlier = list(self._running)

        def run() -> None:
            if any(future.exception() is not None for future in earlier):
                return  # nothing is removed after a save that has failed
            work()

        self._running.append(self._worker.submit(run))

    def _wait(self) -> None:
        running, self._running = self._running, []
        errors = [error for future in running if (error := future.exception()) is not None]
        if errors:
            raise errors[0]


def _locate(path: Any) -> Pointer:
    given = parse_address(path)
    is_step = isinstance(given.step, int)
    return Pointer(given.store, given.step) if is_step else read_pointer(path)


class CairnCheckpoint(lightning.Callback):
    """Saves module, optimizers, schedulers and loops with a :class:`cairn.torch.Saver` after
    epochs, and resumes from the latest step. Every rank takes part in the saves.

    In contrast to :class:`CairnCheckpointIO`, it saves once more on SIGTERM, keeps the best steps
    by a metric, and copies steps to mirrors. Use it with ``enable_checkpointing=False``.

    The state of random generators is not saved, because Lightning uses them between epochs: seed
    them by epoch in ``on_train_epoch_start``. Lightning updates schedulers with
    ``interval="epoch"`` after its callbacks, so a save would miss the update: use
    ``interval="step"``.

    Args:
        address: address of the store.
        every: number of epochs between saves.
        options: further options of the Saver.
    """

    def __init__(self, address: str | os.PathLike[str], every: int = 1, **options: Any) -> None:
        self._address = absolute_address(address)
        self._options = {"every": every, **options}
        self._loaded: dict[str, Any] | None = None
        self._open = ExitStack()

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        store = self._open.enter_context(open_store(self._address, mode="a"))
        self._saver = self._open.enter_context(Saver(store, **self._options))
        if store.steps():
            self._loaded = store.read()
            module.load_state_dict(self._loaded["module"])
            trainer.fit_loop.load_state_dict(self._loaded["loops"])

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._loaded is None:
            return
        for optimizer, state in zip(trainer.optimizers, self._loaded["optimizers"]):
            optimizer.load_state_dict(state)
        for config, state in zip(trainer.lr_scheduler_configs, self._loaded["schedulers"]):
            config.scheduler.load_state_dict(state)
        self._loaded = None

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        def state() -> dict[str, Any]:
            return {
                "module": module.state_dict(),
                "optimizers": [one.state_dict() for one in trainer.optimizers],
                "schedulers": [one.scheduler.state_dict() for one in trainer.lr_scheduler_configs],
                "loops": trainer.fit_loop.state_dict(),
            }

        best = self._options.get("keep_best", ())
        metrics = recordable_metrics(trainer.callback_metrics, best)
        self._saver.step(trainer.current_epoch, state, metrics=metrics)

    def teardown(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str
    ) -> None:
        self._open.close()

    def on_exception(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        exception: BaseException,
    ) -> None:
        # Lightning does not call teardown then.
        self._open.__exit__(type(exception), exception, exception.__traceback__)
