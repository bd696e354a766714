"""The observers of docs/monitoring.md with the real libraries: what they record is read back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import cairn


def observers(**libraries) -> dict:
    """The functions of the page, which use these names."""
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    pattern = re.compile(r"```python\n(import json\n.*?)^for observer", re.DOTALL | re.MULTILINE)
    (code,) = pattern.findall(page)
    names = dict(libraries)
    exec(code, names)
    return names


def train(path: Path, observer) -> None:
    """Saves three steps, of which the last two have NaN, with a mirror."""
    state = {"weight": torch.randn(256, 256), "bad": torch.tensor([1.0, 2.0])}
    options = {"tuning": cairn.SaveTuning(statistics=True), "mirror": path.with_name("mirror")}
    with cairn.open(path, mode="a") as store:
        store.observe(observer)
        store.save(10, state, **options)
        state["bad"][0] = float("nan")
        store.save_async(20, state, **options).result()
        store.save(30, state, **options)
        store.wait_mirrored()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        train(tmp_path / "store", observers(writer=writer)["to_tensorboard"])

    found = EventAccumulator(str(tmp_path / "logs")).Reload()
    points = [(one.step, one.value) for one in found.Scalars("cairn/save/written_bytes")]
    assert points == [(10, 262152), (20, 8), (30, 0)]
    assert len(found.Scalars("cairn/mirror/lag_seconds")) == 3


def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))

    run = wandb.init(project="cairn", mode="offline", dir=str(tmp_path))
    train(tmp_path / "store", observers(run=run)["to_wandb"])
    run.log({"loss": 1.0})
    summary = dict(run.summary)
    run.finish()

    assert summary["loss"] == 1.0
    assert summary["cairn/save/nan"] == 1


def test_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run_id = client.create_run(client.create_experiment("gpt")).info.run_id
    train(tmp_path / "store", observers(client=client, run_id=run_id)["to_mlflow"])

    history = client.get_metric_history(run_id, "cairn/save/written_bytes")
    assert [(one.step, one.value) for one in history] == [(10, 262152), (20, 8), (30, 0)]
    assert client.get_run(run_id).data.tags["cairn.address"] == f"{tmp_path}/store@30"


def test_prometheus(tmp_path, monkeypatch):
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    monkeypatch.chdir(tmp_path)
    registry = CollectorRegistry()
    gauge = Gauge("cairn", "Cairn", ["event", "number"], registry=registry)
    names = observers(registry=registry, gauge=gauge, write_to_textfile=write_to_textfile)
    train(tmp_path / "store", names["to_prometheus"])

    text = Path("cairn.prom").read_text()
    assert 'cairn{event="save",number="nan"} 1.0' in text


def test_log_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "store", observers()["to_log_lines"])

    lines = [json.loads(one) for one in Path("gpt.jsonl").read_text().splitlines()]
    assert sorted(one["step"] for one in lines) == [10, 10, 20, 20, 30, 30]
