"""Cairn: a key-value store for tensor checkpoints.

A store is a directory that contains many steps. A step is one checkpoint: a nested state
of tensors and plain values, saved completely or not at all. Each leaf has a name, its FQN
(fully qualified name): the keys that lead to it, joined by dots.

    import cairn

    store = cairn.open("runs/gpt", mode="a")

    # Save. Chunks that the previous step already contains are not written again.
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "epoch": 3,
    }
    report = store.save(100, state)
    print(f"{report.written_bytes} of {report.logical_bytes} bytes written")

    # Save in the background.
    handle = store.save_async(200, state)
    handle.wait_staged()          # after this call the tensors may change
    handle.result()               # after this call step 200 is durable

    # Resume in place, into the existing memory of the model.
    store.load(state)             # the latest step
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    epoch = state["epoch"]        # plain values are replaced in their containers

    # Read a part of a state, or a part of a tensor.
    layer = store.read("model.layers.0", step=100)
    rows = store.read_slice("model.wte.weight", [(0, 4), (0, 768)])

    # Multiple ranks (DTensor, FSDP, DDP, ...): every rank calls; any mesh can load the step.
    store.save(300, {"model": model, "optimizer": optimizer})
    store.load({"model": model, "optimizer": optimizer})

    # Copy to another store in the background, and read from either of them.
    store.save_async(400, state, mirror="s3://bucket/gpt").mirrored()
    cairn.open("runs/gpt", fallback=["s3://bucket/gpt"])

    # Follow a store: wait for a newer step, and read only what has changed.
    newest = store.wait(after=400, timeout=60)
    store.pull(model.state_dict(), since=400).changed

    # Inspect.
    store.steps()                 # [100, 200]
    store.keys(pattern="model.**.weight")
    store.diff(100, 200).changed
    store.close()                 # or: with cairn.open(...) as store

A load returns what was saved, bit for bit: dtypes, key types, container types, order, and
which tensors share memory. Pickle is neither read nor written unless ``allow_pickle=True``
is given on both sides. Every byte that is read is checked against its digest.

Errors are :class:`cairn.Error` and its subclasses, which indicate what the caller should
do: ``NotFound``, ``Corrupt``, ``Conflict``, ``Invalid``, ``Unavailable``. Each has
``key``, ``step``, ``file`` and ``offset``, where they apply.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cairn._copies import copy_steps
from cairn._open import open
from cairn.errors import Conflict, Corrupt, Error, Invalid, NotFound, Unavailable
from cairn.store import SaveHandle, Store

if TYPE_CHECKING:
    from cairn._mirror.options import Mirror
    from cairn._save.tuning import SaveTuning
    from cairn.reports import (
        CheckReport,
        CompactReport,
        CopiedStep,
        DeleteReport,
        Diff,
        KeyChange,
        KeyInfo,
        LoadReport,
        MergeReport,
        MirrorReport,
        MirrorStatus,
        ParentStep,
        PullReport,
        RetentionPolicy,
        SaveReport,
        StateReport,
        StepHealth,
        StepInfo,
        StoreEvent,
        TensorStatistics,
    )

__all__ = [
    "CheckReport",
    "CompactReport",
    "Conflict",
    "CopiedStep",
    "Corrupt",
    "DeleteReport",
    "Diff",
    "Error",
    "Invalid",
    "KeyChange",
    "KeyInfo",
    "LoadReport",
    "MergeReport",
    "Mirror",
    "MirrorReport",
    "MirrorStatus",
    "NotFound",
    "ParentStep",
    "PullReport",
    "RetentionPolicy",
    "SaveHandle",
    "SaveReport",
    "SaveTuning",
    "StateReport",
    "StepHealth",
    "StepInfo",
    "Store",
    "StoreEvent",
    "TensorStatistics",
    "Unavailable",
    "copy_steps",
    "open",
]

_DATACLASSES = {name: "cairn.reports" for name in __all__ if name not in globals()}
_DATACLASSES |= {"Mirror": "cairn._mirror.options", "SaveTuning": "cairn._save.tuning"}
"""The modules of public names. Defining dataclasses takes longer than importing the rest of the
package, and a reader needs none of them."""
_MODULES = frozenset(("convert", "dcp", "hf", "jax", "metrics", "reports", "state_dict", "torch"))


def __getattr__(name: str) -> Any:
    """Imports the public names that `import cairn` leaves out, when they are first used."""
    if name in _MODULES:
        return importlib.import_module(f"cairn.{name}")
    if name not in _DATACLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_DATACLASSES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
