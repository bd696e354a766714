"""Observers of a store with the real libraries: what they record is read back from their files."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch

import cairn
from cairn import metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def tracking(tmp_path_factory) -> str:
    """The address of a database of MLflow. It takes many synchronous writes to create one."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def train(path: Path, observer) -> None:
    """Saves three steps, of which the last is equal to the second and has NaN, with a mirror, and
    prunes."""
    mirror = path.with_name("mirror")
    state = {"weight": torch.randn(256, 256), "bad": torch.tensor([1.0, 2.0])}
    with cairn.open(path, mode="a") as store:
        store.observe(observer)
        store.save(10, state, statistics=True, mirror=mirror)
        state["bad"][0] = float("nan")
        store.save_async(20, state, statistics=True, tags=["best"], mirror=mirror).result()
        store.save(30, state, statistics=True, mirror=mirror)
        store.wait_mirrored()
        store.prune(keep_last=1)


def test_tensorboard_reads_the_scalars(path, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        train(path, metrics.TensorBoard(writer))

    found = EventAccumulator(str(tmp_path / "logs")).Reload()

    def points(name: str) -> list[tuple[int, float]]:
        return [(one.step, one.value) for one in found.Scalars(name)]

    assert points("cairn/save/written_bytes") == [(10, 262152), (20, 8), (30, 0)]
    assert points("cairn/save/reuse") == [(10, 0), (20, 0.5), (30, 1)]
    assert points("cairn/save/nan") == [(10, 0), (20, 1), (30, 1)]
    assert points("cairn/prune/steps") == [(30, 1)]
    assert all(value > 0 for _, value in points("cairn/save/stall_seconds"))
    assert [step for step, _ in points("cairn/mirror/lag_seconds")] == [10, 20, 30]
    assert points("cairn/mirror/copied_bytes")[0][1] > 262152
    assert points("cairn/mirror/copied_bytes")[2] == (30, 0)


def wandb_records(folder: Path) -> list:
    """The records of the one offline run below a folder. The file has a header of 7 bytes, and then
    the format of LevelDB's logs: blocks of 32 KiB with fragments, each with a checksum, a length
    and a type (whole, first, middle, last)."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    data, at, pending, records = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:
            at += -at % (1 << 15)
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        pending += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(pending))
            pending = b""
    return records


def test_wandb_records_scalars_and_references_and_uploads_nothing(path, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))

    run = wandb.init(project="cairn", mode="offline", dir=str(tmp_path))
    train(path, metrics.Wandb(run))
    run.log({"loss": 1.0})
    run.finish()

    records = wandb_records(tmp_path)
    rows = [
        {"".join(item.nested_key) or item.key: json.loads(item.value_json)
         for item in one.history.item}
        for one in records
        if one.HasField("history")
    ]
    # The values are part of the row of the training.
    (row,) = rows
    assert row["loss"] == 1.0
    assert row["cairn/step"] == 30
    assert row["cairn/save/reuse"] == 1
    assert row["cairn/prune/steps"] == 1
    assert row["cairn/mirror/step"] == 30
    assert row["cairn/mirror/attempts"] == 1
    requests = [one.request.log_artifact.artifact for one in records if one.HasField("request")]
    artifacts = [one.artifact for one in records if one.HasField("artifact")] + requests
    assert [set(one.aliases) for one in artifacts] == [
        {"latest", "step-10"},
        {"latest", "step-20", "best"},
        {"latest", "step-30"},
    ]
    for artifact, step in zip(artifacts, (10, 20, 30)):
        (entry,) = artifact.manifest.contents
        assert entry.ref.startswith(f"cairn+file://{path}@{step}#")
        assert not entry.local_path
        assert json.loads(artifact.metadata)["address"] == f"{path}@{step}"


def test_mlflow_records_metrics_and_the_address(path, tracking):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")

    mlflow.set_tracking_uri(tracking)
    with pytest.raises(cairn.Invalid, match="no active run"):
        metrics.MLflow()
    with mlflow.start_run() as run:
        train(path, metrics.MLflow())

    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "cairn/save/written_bytes")
    tags = client.get_run(run.info.run_id).data.tags
    assert [(one.step, one.value) for one in history] == [(10, 262152), (20, 8), (30, 0)]
    copied = client.get_metric_history(run.info.run_id, "cairn/mirror/copied_bytes")
    assert [one.step for one in copied] == [10, 20, 30]
    assert copied[0].value > 262152
    assert tags["cairn.address"] == f"{path}@30"
    assert tags["cairn.tag.best"] == f"{path}@20"
    with cairn.open(tags["cairn.address"].rpartition("@")[0]) as store:
        assert store.steps() == [20, 30]


def test_prometheus_parses_the_file(path, tmp_path):
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    file = tmp_path / "cairn.prom"
    strange = 'a "job"\\ of\nmine'
    train(path, metrics.Prometheus(file, {"job": strange}))

    families = {one.name: one for one in text_string_to_metric_families(file.read_text())}
    samples = [sample for family in families.values() for sample in family.samples]
    of_mirror = {one.name: one.value for one in samples if "mirror" in one.labels}
    values = {
        (sample.name, sample.labels.get("call", "")): sample.value
        for sample in samples
        if "mirror" not in sample.labels
    }
    assert values["cairn_calls_total", "save"] == 3
    assert values["cairn_written_bytes_total", "save"] == 262160
    assert values["cairn_chunks_reused_total", "save"] == 3
    assert values["cairn_last_saved_step", ""] == 30
    assert values["cairn_last_save_nan", ""] == 1
    assert of_mirror["cairn_calls_total"] == 3
    assert of_mirror["cairn_copied_bytes_total"] > 262160
    assert of_mirror["cairn_last_mirrored_step"] == 30
    assert 0 <= of_mirror["cairn_last_mirror_lag_seconds"] < 60
    assert {one.labels["mirror"] for one in samples if "mirror" in one.labels} == {
        str(path.with_name("mirror"))
    }
    labels = families["cairn_last_saved_step"].samples[0].labels
    assert labels == {"store": str(path), "job": strange}
    assert {one.type for one in families.values()} == {"counter", "gauge"}
    others = {one.name for one in tmp_path.iterdir() if one.suffix != ".prom"}
    assert others == {"store", "mirror"}


def test_the_examples_of_the_page_run(tmp_path, tracking, monkeypatch):
    for name in ("tensorboard", "wandb", "mlflow", "sqlalchemy", "prometheus_client"):
        pytest.importorskip(name)
    import mlflow
    import wandb

    wandb.teardown()  # wandb reads the environment once, at its first run
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    mlflow.set_tracking_uri(tracking)
    state = {"model": {"weight": torch.randn(64, 64)}}
    with cairn.open("runs/gpt", mode="a") as store:
        names = {"cairn": cairn, "store": store, "state": state}
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(block, names)

    assert Path("cairn.prom").read_text().startswith("# HELP cairn_calls_total")
    lines = [json.loads(one) for one in Path("gpt.jsonl").read_text().splitlines()]
    assert lines[-1]["EventName"] == "cairn.save"
    assert list(Path("logs").iterdir())
    assert list(Path("wandb").glob("offline-run-*"))
