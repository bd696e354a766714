"""Observers of a store (:meth:`cairn.Store.observe`) for the programs that collect metrics::

    store.observe(cairn.metrics.TensorBoard(SummaryWriter("runs/gpt")))
    store.observe(cairn.metrics.Wandb(wandb.init(project="gpt")))
    store.observe(cairn.metrics.MLflow())
    store.observe(cairn.metrics.Prometheus("/var/lib/node_exporter/cairn.prom", {"job": "gpt"}))
    store.observe(cairn.metrics.LogLines("runs/gpt.jsonl", {"service.name": "gpt"}))

Each records the numbers of :func:`measures`: bytes, stall, reuse, failures, free space, and NaN and
infinities of steps that were saved with ``statistics=True``; and of copies to mirrors, the bytes
and the lag. In a multi-rank job, observe the store of rank 0, or give each rank its own file,
writer or run. docs/monitoring.md describes what each of them records.

Importing this package imports none of these libraries.
"""

from __future__ import annotations

from cairn.metrics._log_lines import LogLines
from cairn.metrics._measures import measures
from cairn.metrics._mlflow import MLflow
from cairn.metrics._prometheus import Prometheus
from cairn.metrics._tensorboard import TensorBoard
from cairn.metrics._wandb import Wandb

__all__ = ["LogLines", "MLflow", "Prometheus", "TensorBoard", "Wandb", "measures"]
