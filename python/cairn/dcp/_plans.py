"""Plans that take less time to send: the coordinator receives and returns the plans of all
ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem


def with_shared_parts(plan: SavePlan) -> SavePlan:
    """An equal plan, in which equal shapes, offsets and properties of tensors are one object, so
    that pickle stores each of them once."""
    parts = _Parts()
    return dataclasses.replace(plan, items=[parts.item(item) for item in plan.items])


class _Parts:
    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def item(self, item: WriteItem) -> WriteItem:
        data = item.tensor_data
        # Objects of subclasses may have more fields.
        if type(data) is not TensorWriteData or type(data.chunk) is not ChunkStorageMetadata:
            return item
        chunk = ChunkStorageMetadata(self._one(data.chunk.offsets), self._one(data.chunk.sizes))
        shared = TensorWriteData(chunk, self._properties(data.properties), self._one(data.size))
        return dataclasses.replace(item, tensor_data=shared)

    def _one(self, size: Any) -> Any:
        return self._known.setdefault((type(size), tuple(size)), size)

    def _properties(self, properties: Any) -> Any:
        key = (type(properties), *vars(properties).values())
        return self._known.setdefault(key, properties)
