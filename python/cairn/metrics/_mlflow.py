"""`MLflow`: metrics of each event, and tags with the address of the last saved step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn.errors import Invalid
from cairn.metrics._measures import LastStep, measures, series

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from cairn.reports import StoreEvent


class MLflow:
    """An observer that logs to a run of MLflow.

    Metrics are named such as ``cairn/save/written_bytes``, and have the training step. The tag
    ``cairn.address`` is the address of the step that was saved last, and each tag ``best`` of a
    step is a tag ``cairn.tag.best`` of the run with the address of that step. Each event is one
    request to the tracking server; that of a background save is made by a background thread.

    Threads: any. MLflow's own functions use the active run of their thread; this class does not.

    Args:
        run_id: the run; by default the active one.
        client: by default a client of the current tracking server.

    Raises Invalid if there is no active run.
    """

    def __init__(self, run_id: str | None = None, client: MlflowClient | None = None) -> None:
        import mlflow

        if run_id is None:
            run = mlflow.active_run()
            if run is None:
                raise Invalid("there is no active run: call mlflow.start_run() or give run_id=")
            run_id = run.info.run_id
        self._run_id = run_id
        self._client = mlflow.MlflowClient() if client is None else client
        self._last = LastStep()

    def __call__(self, event: StoreEvent) -> None:
        from mlflow.entities import Metric, RunTag

        step, time_ms = self._last.of(event), event.unix_ns // 1_000_000
        metrics = [
            Metric(f"cairn/{series(event)}/{name}", value, time_ms, step)
            for name, value in measures(event).items()
        ]
        tags = []
        if event.kind == "save" and event.error is None:
            address = f"{event.address}@{event.step}"
            names = () if event.info is None else event.info.tags
            tags = [RunTag("cairn.address", address)]
            tags += [RunTag(f"cairn.tag.{name}", address) for name in names]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)
