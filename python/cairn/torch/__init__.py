"""For training loops of PyTorch: staging that is kept from save to save, and a `Saver`.

    import cairn
    import cairn.torch

    with cairn.open("runs/gpt", mode="a") as store, cairn.torch.Saver(store, every=100) as saver:
        state = make_state()
        done = saver.resume(state)             # None: nothing to resume from
        for step in range(0 if done is None else done + 1, 10_000):
            train_one_step()
            saver.step(step, make_state)       # called only when a save is due

:class:`Saver` saves every so many steps, behind the training, deletes steps that are not wanted
any more, and saves once more when the process is told to end (SIGTERM).

:class:`StateDictStager` copies a state into host memory that it uses again at the next staging.
:class:`CairnStager` is one for ``torch.distributed.checkpoint.async_save``. Cairn's own
``store.save_async`` keeps its host copies by itself and needs neither.
"""

from cairn.torch._dcp_stager import CairnStager
from cairn.torch._saver import Saver
from cairn.torch._stager import Staged, StateDictStager

__all__ = ["CairnStager", "Saver", "Staged", "StateDictStager"]
