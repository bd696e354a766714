"""Agreement between the ranks of a training job on what to do at a step."""

from __future__ import annotations

import time
from typing import NamedTuple

from cairn._ranks.ranks import Ranks
from cairn.errors import Invalid, Unavailable


class JobStatus(NamedTuple):
    """The status of one rank, or the combined status of all ranks.

    Attributes:
        signal: number of a signal that at least one rank has received; 0 for none.
        saving: True if the last save is still running on at least one rank.
    """

    signal: int
    saving: bool


class Agreement:
    """Combines the status of all ranks that have a store open.

    The ranks have separate connections for this, so that an agreement neither waits for a GPU nor
    interferes with the collectives of the training or with a running save. All ranks create, use
    and close the object at the same points of the program.

    Raises Unavailable if a rank does not connect in time.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.seconds = 0.0
        self._ranks: Ranks | None = ranks.connected_again()

    def agree_on(self, step: int, local: JobStatus) -> JobStatus:
        """Combines the local status of all ranks. Collective.

        Raises:
            Invalid: the ranks are at different steps.
            Unavailable: a rank has died, or did not call in time.
        """
        assert self._ranks is not None
        begin = time.perf_counter()
        try:
            replies = self._ranks.exchange_values(lambda: (*local, step))
        except Unavailable as error:
            raise Unavailable(
                f"step {step}: a rank has died, or did not reach it in time ({error})", step=step
            ) from error
        self.seconds += time.perf_counter() - begin
        signals, saving, steps = zip(*replies)
        if len(set(steps)) > 1:
            raise Invalid(
                f"step {step}: other ranks are at steps {min(steps)} to {max(steps)}; each must "
                "call the Saver at the same steps",
                step=step,
            )
        return JobStatus(max(signals), any(saving))

    def close(self) -> None:
        """Closes the connections. May be called again."""
        self._ranks = None
