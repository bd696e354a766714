"""Cairn: a key-value store for tensor checkpoints.

A store contains many steps. A step is one checkpoint: a nested state of tensors and plain values,
saved completely or not at all. Each leaf has a name, its FQN (fully qualified name): the keys that
lead to it, joined by dots.

    import cairn

    store = cairn.open("runs/gpt", mode="a")
    state = {"model": model, "optimizer": optimizer, "epoch": 3}
    store.save(100, state)        # chunks that the previous step contains are not written again
    handle = store.save_async(200, state)
    handle.wait_staged()          # after this call the tensors may change
    handle.result()               # after this call step 200 is durable
    store.load(state)             # the latest step, in place
    store.read("model.layers.0", step=100)
    store.close()                 # or: with cairn.open(...) as store

Under torch.distributed every rank makes these calls, and any mesh can load a step.

A load returns what was saved, bit for bit: dtypes, key types, container types, order, and
which tensors share memory. Pickle is neither read nor written unless ``allow_pickle=True``
is given on both sides. Every byte that is read is checked against its digest.

Errors are :class:`cairn.Error` and its subclasses, which indicate what the caller should
do: ``NotFound``, ``Corrupt``, ``Conflict``, ``Invalid``, ``Unavailable``. Each has
``key``, ``step``, ``file`` and ``offset``, where they apply.
"""

# ruff: noqa: F405 - names of the reports
from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from cairn._copies import copy_steps
from cairn.errors import Conflict, Corrupt, Error, Invalid, NotFound, Unavailable
from cairn.store import SaveHandle, Store, open

if os.path.exists(os.path.join(os.path.dirname(__file__), "versions.py")):
    raise ImportError(
        "the distribution 'cairn' of PyPI, which is another project, is in the folder of this "
        "package; run: pip uninstall cairn && pip install --force-reinstall --no-deps cairn-ckpt"
    )

if TYPE_CHECKING:
    from cairn._mirror.options import Mirror
    from cairn._save.tuning import SaveTuning
    from cairn.reports import *  # noqa: F403

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
    if name == "__version__":
        return importlib.import_module("cairn._cairn").__version__
    if name not in _DATACLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_DATACLASSES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
