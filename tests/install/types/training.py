"""A program of a user, which `mypy --strict` checks against the installed package.

Each `assert_type` states what a call returns.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import assert_type

import cairn
from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import Saver


def save(store: cairn.Store, state: dict[str, Any]) -> int:
    report = store.save(100, state, tags=["best"], metrics={"val_loss": 2.1})
    assert_type(report, cairn.SaveReport)
    handle = store.save_async(200, state)
    assert_type(handle, cairn.SaveHandle)
    handle.wait_staged()
    assert_type(handle.result(), cairn.SaveReport)
    return report.written_bytes + report.chunks_reused


def load(store: cairn.Store, state: dict[str, Any]) -> list[str]:
    report = store.load(state, strict=False)
    assert_type(report, cairn.LoadReport)
    part = store.read("model.layers.0", step=report.step)
    rows = store.read_slice("model.wte.weight", [(0, 4), (0, 768)])
    print(part, rows, store.diff(100, 200).changed)
    return [*report.missing, *report.unexpected]


def describe(store: cairn.Store) -> None:
    assert_type(store.steps(), list[int])
    for fqn, info in store.keys(pattern="model.**").items():
        assert_type(fqn, str)
        assert_type(info, cairn.KeyInfo)
    store.prune(keep_last=3, keep_every=1000)
    store.tag(200, "prod")


def train(path: str, model: torch.nn.Module) -> None:
    try:
        with cairn.open(path, mode="a") as store:
            save(store, {"model": model.state_dict()})
            load(store, {"model": model})
            describe(store)
    except cairn.Conflict as error:
        print(error.file, error.step)
    print(CairnWriter(path, step=300), CairnReader(path, step=300), Saver)
