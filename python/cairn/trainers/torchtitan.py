"""Cairn as the checkpoint manager of torchtitan.

    from cairn.trainers.torchtitan import CairnCheckpointManager

    config = llama3_debugmodel()                      # a Trainer.Config
    config.checkpoint = CairnCheckpointManager.Config(enable=True, interval=100, keep_latest_k=3)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.checkpoint import MODEL, AsyncMode, CheckpointManager

from cairn._base.addresses import absolute_address
from cairn._save.tuning import SaveTuning
from cairn.errors import Invalid, NotFound
from cairn.store import SaveHandle, Store
from cairn.store import open as open_store


class CairnCheckpointManager(CheckpointManager):
    """Saves the states of torchtitan's trainer as steps of one store.

    The configuration is the same as for torchtitan's own manager. ``folder`` is the address of the
    store, relative to the dump folder. ``keep_latest_k`` deletes older steps once a newer one is
    durable; steps with tags remain. ``async_mode="async"`` returns when the state is copied;
    ``"async_with_pinned_mem"`` returns earlier, and torchtitan waits for the copies before it
    changes the parameters. The final checkpoint is saved in the Hugging Face format if the
    configuration asks for that.

    Threads: the main thread of each rank; all calls are collective.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """See the class. ``store`` is an address that is used in place of ``folder``, such as
        ``s3://bucket/run``; ``deltas`` is as in :class:`cairn.SaveTuning`."""

        store: str = ""
        deltas: bool = False

    def __init__(self, config: Config, **parts: Any) -> None:
        self._store: Store | None = None
        super().__init__(config, **parts)
        if not self.enable:
            return
        self._address = absolute_address(config.store or self.folder)
        self._tuning = SaveTuning(deltas=config.deltas)

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        self.maybe_wait_for_saving()
        if last_step:
            self._save_last_step(curr_step)  # which calls dcp_save
            return True
        states = self._flattened_model_states_sd()
        if self.async_mode == AsyncMode.DISABLED:
            self._write(curr_step, states)
            return True
        handle = self._opened("a").save_async(
            curr_step, states, overwrite=True, tuning=self._tuning
        )
        self.save_future = handle
        self.staging_future = handle
        if self.async_mode == AsyncMode.ASYNC:
            self._maybe_wait_for_staging()
        return True

    @torch.no_grad()
    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Any:
        """Saves a state as the step that ``checkpoint_id`` names; with ``to_hf`` as torchtitan
        does."""
        if to_hf:
            return super().dcp_save(
                state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf
            )
        self._write(int(checkpoint_id.rpartition("step-")[2]), state_dict)
        return None

    def _write(self, step: int, states: dict[str, Any]) -> None:
        self._opened("a").save(step, states, overwrite=True, tuning=self._tuning)
        self._purge_stale_checkpoints()

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        found = self._find_load_step() if step == -1 else step
        if found == -1:
            return super()._load(-1)  # an initial checkpoint, if the configuration names one
        store = self._opened("r" if self.load_only else "a")
        states = self._states_to_load(model_only=found == 0)
        self._fill(store, states, found)
        return True

    def dcp_load(
        self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool
    ) -> None:
        """Loads an initial checkpoint: the latest step, if it is a store; otherwise as torchtitan
        does."""
        if not from_hf:
            try:
                store = open_store(checkpoint_id)
            except (Invalid, NotFound):
                store = None  # a directory of torch.distributed.checkpoint
            if store is not None:
                with store:
                    self._fill(store, state_dict, None)
                return
        super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)

    def _fill(self, store: Store, states: dict[str, Any], step: int | None) -> None:
        # Entries that the configuration excludes, or a checkpoint of the model alone lacks, are not
        # loaded.
        absent = [f"!{name}" for name in self.states if name != MODEL and name not in states]
        store.load(states, step, keys=absent or None)
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(states)

    def _find_load_step(self, folder: str = "") -> int:
        if folder:
            return super()._find_load_step(folder)
        try:
            latest = self._opened("r" if self.load_only else "a").latest()
        except NotFound:
            return -1
        found = [-1 if latest is None else latest]
        torch.distributed.broadcast_object_list(found, src=0)  # all ranks load what rank 0 sees
        return found[0]

    def _maybe_wait_for_staging(self) -> None:
        handle, self.staging_future = self.staging_future, None
        if handle is not None:
            handle.wait_staged()

    def _wait_for_saving(self) -> None:
        handle: SaveHandle | None
        handle, self.save_future = self.save_future, None
        if handle is not None:
            handle.result()
            self._purge_stale_checkpoints()

    def _purge_stale_checkpoints(self) -> None:
        if self.keep_latest_k > 0:
            self._opened("a").prune(keep_last=self.keep_latest_k)

    def _opened(self, mode: str) -> Store:
        """The store, which is opened at the first use. Collective."""
        if self._store is None:
            self._store = open_store(self._address, mode=mode)
        return self._store

    def _close(self) -> None:
        super()._close()
        store = self._store
        if store is None:
            return
        try:
            if sys.exc_info()[0] is None:
                self.maybe_wait_for_saving()
                store.close()
            else:
                store.abandon()  # the other ranks may not close it
        finally:
            self._store = None
