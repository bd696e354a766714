"""`BoxedTensor`: a tensor that a front end of another library gives as boxes in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Box(NamedTuple):
    """A box of a tensor. The dtype of `array` has the element size of the tensor's dtype."""

    offsets: tuple[int, ...]
    array: np.ndarray


class BoxedTensor:
    """The boxes of a tensor that this rank writes. The boxes of all ranks form the tensor. It is
    stored as a torch tensor.

    Args:
        dtype: its code.
        shape: of the complete tensor.
        boxes: without overlap; none if other ranks write everything.
        is_replicated: the box is the complete tensor, which is equal on all ranks that have it.
    """

    def __init__(
        self,
        dtype: int,
        shape: tuple[int, ...],
        boxes: list[Box],
        *,
        is_replicated: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.boxes = boxes
        self.is_replicated = is_replicated

    @property
    def is_complete(self) -> bool:
        """Whether one box is the complete tensor."""
        return len(self.boxes) == 1 and self.boxes[0].array.shape == self.shape
