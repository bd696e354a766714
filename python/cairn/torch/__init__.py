"""Support for PyTorch training loops: a `Saver`, and staging memory that is reused.

:func:`resume` and :func:`save` take the objects of a training. A :class:`Saver` also decides when
to save:

    import cairn
    import cairn.torch

    with cairn.open("runs/gpt", mode="a") as store, cairn.torch.Saver(store, every=100) as saver:
        state = make_state()
        done = saver.resume(state)             # None: the store has no step
        for step in range(0 if done is None else done + 1, 10_000):
            train_one_step()
            saver.step(step, make_state)       # calls make_state only when a save is due

:class:`Saver` saves at a fixed interval of steps, in the background, deletes old steps, and saves
once more when the process receives SIGTERM.

:class:`StateDictStager` copies a state into host memory that it reuses for the next staging.
:class:`CairnStager` is a stager for ``torch.distributed.checkpoint.async_save``. Cairn's own
``store.save_async`` manages its host copies and needs neither.

:func:`register_tensor_subclass` allows ``Store.read`` to rebuild tensors of a class.
"""

from cairn._tensors.subclasses import register_tensor_subclass
from cairn.torch._resume import ResumedStep
from cairn.torch._saver import Saver
from cairn.torch._training import Start, resume, save
from cairn.torch._stager import CairnStager, Staged, StateDictStager

__all__ = [
    "CairnStager",
    "ResumedStep",
    "Saver",
    "Staged",
    "Start",
    "StateDictStager",
    "register_tensor_subclass",
    "resume",
    "save",
]
