"""For training loops of PyTorch: staging that is kept from save to save.

:class:`StateDictStager` copies a state into host memory that it uses again at the next staging.
:class:`CairnStager` is one for ``torch.distributed.checkpoint.async_save``. Cairn's own
``store.save_async`` keeps its host copies by itself and needs neither.
"""

from cairn.torch.dcp_stager import CairnStager
from cairn.torch.stager import Staged, StateDictStager

__all__ = ["CairnStager", "Staged", "StateDictStager"]
