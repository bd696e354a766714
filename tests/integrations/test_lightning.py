"""`CairnCheckpointIO` with Lightning's trainer and `ModelCheckpoint`."""

from __future__ import annotations

import json
import signal
import sys

import pytest

lightning = pytest.importorskip("pytorch_lightning")
pytest.importorskip("torchdata.stateful_dataloader")  # the example needs it

import cairn
import torch
from cairn.trainers.lightning import CairnCheckpoint, CairnCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.plugins.io import AsyncCheckpointIO
from trainer_runs import EXAMPLES

sys.path.insert(0, str(EXAMPLES))
from lightning_checkpoints import Regression


def fit(folder, plugin, epochs=2, ckpt_path=None, **options):
    """Trains with a checkpoint after each of 4 steps per epoch. Returns the trainer."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1).sin())
    checkpoints = ModelCheckpoint(folder, every_n_train_steps=1, **options)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[checkpoints], plugins=[plugin],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )
    model = Regression(width=8)
    trainer.fit(model, torch.utils.data.DataLoader(data, 16), ckpt_path=ckpt_path)
    return trainer


def files_and_steps(folder):
    files = {path.name for path in folder.iterdir() if path.suffix == ".ckpt"}
    with cairn.open(folder / "cairn-store") as store:
        return files, store.steps()


PLUGINS = {
    "waits": CairnCheckpointIO,
    "background": lambda: CairnCheckpointIO(async_=True),
    "lightning's thread": lambda: AsyncCheckpointIO(CairnCheckpointIO()),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_the_best_checkpoints_remain_and_the_others_are_removed(tmp_path, name):
    trainer = fit(tmp_path, PLUGINS[name](), monitor="loss", save_top_k=3, mode="max")

    files, steps = files_and_steps(tmp_path)
    best = trainer.checkpoint_callback.best_k_models
    names = {path.rpartition("/")[2] for path in best}
    assert len(files) == len(steps) and len(names) == 3
    # Lightning's plugin removes at once a checkpoint that its thread has not written yet.
    assert files >= names if name == "lightning's thread" else files == names
    for path in best:
        loaded = CairnCheckpointIO().load_checkpoint(path)
        assert f"step={loaded['global_step']}" in path


@pytest.mark.parametrize("save_last", [True, "link"])
def test_the_last_checkpoint_can_be_a_file_or_a_link(tmp_path, save_last):
    trainer = fit(tmp_path, CairnCheckpointIO(), save_last=save_last)

    files, steps = files_and_steps(tmp_path)
    assert "last.ckpt" in files and len(files) == 2
    assert len(steps) == (1 if save_last == "link" else 2)
    last = CairnCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    for name, value in trainer.lightning_module.state_dict().items():
        assert torch.equal(last["state_dict"][name], value)
    assert fit(tmp_path, CairnCheckpointIO(), epochs=3, ckpt_path="last").global_step == 12


def test_all_checkpoints_are_steps_that_share_chunks(tmp_path):
    fit(tmp_path, CairnCheckpointIO(), save_top_k=-1)

    files, steps = files_and_steps(tmp_path)
    assert len(files) == len(steps) == 8 and steps == list(range(1, 9))
    pointer = json.loads((tmp_path / "epoch=1-step=8.ckpt").read_text())
    assert pointer == {"cairn": 1, "store": "cairn-store", "step": 8}
    moved = tmp_path.parent / "moved"
    tmp_path.rename(moved)
    assert CairnCheckpointIO().load_checkpoint(moved / "epoch=1-step=8.ckpt")["global_step"] == 8


def test_a_step_can_be_resumed_by_its_address(tmp_path):
    fit(tmp_path, CairnCheckpointIO(), save_top_k=-1)
    address = f"{tmp_path / 'cairn-store'}@4"

    other = tmp_path / "other"
    trainer = fit(other, CairnCheckpointIO(), ckpt_path=address)

    assert trainer.global_step == 8 and files_and_steps(other)[1] == [8]


def test_objects_need_consent(tmp_path):
    checkpoint = {"global_step": 3, "hyper_parameters": {"folder": tmp_path}}
    plugin = CairnCheckpointIO()
    with pytest.raises(cairn.Invalid, match="hyper_parameters.folder"):
        plugin.save_checkpoint(checkpoint, tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()
    plugin.teardown()

    plugin = CairnCheckpointIO(allow_pickle=True)
    plugin.save_checkpoint(checkpoint, tmp_path / "a.ckpt")
    assert plugin.load_checkpoint(tmp_path / "a.ckpt") == checkpoint
    with pytest.raises(cairn.Invalid, match="allow_pickle"):
        plugin.load_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    plugin.teardown()


def test_wrong_files_are_refused(tmp_path):
    plugin = CairnCheckpointIO()
    with pytest.raises(cairn.NotFound, match="absent.ckpt"):
        plugin.load_checkpoint(tmp_path / "absent.ckpt")
    torch.save({}, tmp_path / "torch.ckpt")
    with pytest.raises(cairn.Invalid, match="not written by Cairn"):
        plugin.load_checkpoint(tmp_path / "torch.ckpt")
    plugin.remove_checkpoint(tmp_path / "torch.ckpt")
    assert (tmp_path / "torch.ckpt").exists()
    (tmp_path / "damaged.ckpt").write_text('{"cairn": 1, "store')
    with pytest.raises(cairn.Corrupt, match="damaged.ckpt"):
        plugin.load_checkpoint(tmp_path / "damaged.ckpt")
    (tmp_path / "newer.ckpt").write_text('{"cairn": 99, "store": "s", "step": 3}')
    with pytest.raises(cairn.Invalid, match="newer.ckpt .* use a newer Cairn"):
        plugin.load_checkpoint(tmp_path / "newer.ckpt")
    with pytest.raises(cairn.Invalid, match="storage_options"):
        plugin.save_checkpoint({}, tmp_path / "a.ckpt", storage_options={})


def test_a_failed_save_in_the_background_keeps_the_earlier_checkpoint(tmp_path, monkeypatch):
    plugin = CairnCheckpointIO(async_=True)
    plugin.save_checkpoint({"global_step": 1, "t": torch.ones(10)}, tmp_path / "a.ckpt")
    plugin.save_checkpoint({"global_step": 2, "t": torch.ones(10)}, tmp_path / "b.ckpt")
    plugin.load_checkpoint(tmp_path / "b.ckpt")  # waits until it is durable
    monkeypatch.setattr(plugin, "_point", failing)
    plugin.save_checkpoint({"global_step": 3, "t": torch.ones(10)}, tmp_path / "c.ckpt")
    plugin.remove_checkpoint(tmp_path / "b.ckpt")
    with pytest.raises(OSError, match="no space"):
        plugin.teardown()
    assert plugin.load_checkpoint(tmp_path / "b.ckpt")["global_step"] == 2


def failing(*unused: object) -> None:
    raise OSError("no space")


def test_a_fit_that_fails_closes_the_store(tmp_path):
    class Model(BoringModel):
        fails = True

        def training_step(self, batch, index):
            if self.fails:
                raise RuntimeError("out of memory")
            return super().training_step(batch, index)

    received = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    callback = CairnCheckpoint(tmp_path / "store")
    module = Model()

    def fit() -> None:
        trainer = lightning.Trainer(
            max_epochs=1, callbacks=[callback], enable_checkpointing=False, logger=False,
            enable_progress_bar=False, accelerator="cpu", limit_train_batches=4,
        )  # fmt: skip
        trainer.fit(module)

    with pytest.raises(RuntimeError, match="out of memory"):
        fit()
    signal.raise_signal(signal.SIGTERM)
    module.fails = False
    fit()
    signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, handler)
    assert received == [signal.SIGTERM] * 2
    assert cairn.open(tmp_path / "store").steps() == [0]
