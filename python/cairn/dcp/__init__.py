"""Cairn as the storage of ``torch.distributed.checkpoint``: one line of a training script changes.

    import torch.distributed.checkpoint as dcp
    from cairn.dcp import CairnReader, CairnWriter

    dcp.save(state, storage_writer=CairnWriter("runs/gpt", step=100))
    dcp.load(state, storage_reader=CairnReader("runs/gpt", step=100))

    # or, as with files, one store per checkpoint
    dcp.save(state, checkpoint_id="ckpt/final", storage_writer=CairnWriter())
    dcp.load(state, checkpoint_id="ckpt/final", storage_reader=CairnReader())

Such a checkpoint is an ordinary step: ``cairn.open("runs/gpt").read("model.layers.0")`` reads a
part of it, ``kv-dump`` shows it, and :class:`CairnReader` loads what ``Store.save`` has saved.
Unchanged chunks of the previous step are not written again, every byte that is read is checked, and
a step is complete or absent, even when it replaces another.

After :func:`register`, ``dcp.load(state, checkpoint_id="runs/gpt@100")`` needs no reader.

No pickle is written: DCP's metadata and plain Python values are stored in Cairn's records. Other
objects are refused by name, unless the writer and the reader are given ``allow_pickle=True``.
"""

from cairn.dcp._reader import CairnReader
from cairn.dcp._register import register
from cairn.dcp._writer import CairnWriter

__all__ = ["CairnReader", "CairnWriter", "register"]
