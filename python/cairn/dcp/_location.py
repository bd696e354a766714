"""The location of a checkpoint of ``torch.distributed.checkpoint``: a store and a step."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Union

from torch.distributed.checkpoint.filesystem import FileSystem

from cairn._base.addresses import absolute_address, is_directory, parse_address, step_number
from cairn.errors import Invalid

CheckpointId = Union[str, "os.PathLike[str]", None]


class Location(NamedTuple):
    """The address of a store, and optionally a step in it."""

    address: str
    step: int | None

    @property
    def path(self) -> Path | str:
        """The directory of the store; the address of a store that is not in a directory."""
        return Path(self.address.removeprefix("file:")) if self.is_directory else self.address

    @property
    def is_directory(self) -> bool:
        return is_directory(self.address)

    def __str__(self) -> str:
        return self.address if self.step is None else f"{self.address}@{self.step}"

    def of_rank(self, rank: int) -> Location:
        """The location for a rank that saves by itself, without communication."""
        address, question_mark, parameters = self.address.partition("?")
        if is_directory(self.address):
            address, question_mark, parameters = self.address, "", ""
        return Location(
            os.path.join(address, f"rank-{rank}") + question_mark + parameters, self.step
        )


class Located:
    """The attributes by which scripts find the location of a reader or writer of torch, and with
    which subclasses set it."""

    _location: Location | None = None
    _step: int | None = None
    _fs: Any = None

    @property
    def checkpoint_id(self) -> str | None:
        """The address, and the step if one is named."""
        return None if self._location is None else str(self._location)

    @property
    def path(self) -> Path | str | None:
        """The directory of the store, which has no file per checkpoint; the address of a store that
        is not in a directory; None if no store is named."""
        return None if self._location is None else self._location.path

    @path.setter
    def path(self, path: CheckpointId) -> None:
        self._location = locate(path, self._step)

    @property
    def fs(self) -> Any:
        """What was assigned, which Cairn does not use; otherwise torch's functions for files in
        :attr:`path`. An AttributeError for stores that are not in a directory, so that
        ``hasattr(_, "fs")`` is False."""
        if self._fs is not None:
            return self._fs
        if self._location is None or not self._location.is_directory:
            raise AttributeError("fs: the store is not in a directory")
        return FileSystem()

    @fs.setter
    def fs(self, fs: Any) -> None:
        self._fs = fs

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return is_checkpoint_id(checkpoint_id)


def locate(checkpoint_id: CheckpointId, step: int | None) -> Location | None:
    """The location that an address, or ``ADDRESS@STEP``, and a step name; None without an address.
    Raises Invalid if the step is out of range, if the address is not text or a URL of another kind
    of storage, or if the two steps differ."""
    step = None if step is None else step_number(step)
    if checkpoint_id is None or checkpoint_id == "":
        return None
    address = os.fspath(checkpoint_id)
    if not isinstance(address, str):
        raise Invalid(f"checkpoint_id {checkpoint_id!r}: a str or a path of str is needed")
    if not is_checkpoint_id(address):
        raise Invalid(
            f"'{address}' is a URL of another kind of storage: a store is a directory (PATH or "
            "file:PATH), s3://BUCKET/PREFIX, or rados:POOL/NAMESPACE"
        )
    store, named = parse_address(address)
    if not isinstance(named, int):
        return Location(absolute_address(address), step)
    if step is not None and named != step:
        raise Invalid(f"'{address}' names step {named}, but step={step} is given: give one of them")
    return Location(absolute_address(store), step_number(named))


def is_checkpoint_id(checkpoint_id: CheckpointId) -> bool:
    """Whether it can name a store: anything except a URL of another kind of storage."""
    if checkpoint_id is None:
        return False
    kind, is_url, _ = os.fspath(checkpoint_id).partition("://")
    return not is_url or kind == "s3"


def warn_of_ignored(**is_ignored: bool) -> None:
    """Warns of the arguments of torch's class that were given and that a store ignores."""
    names = [name for name, is_given in is_ignored.items() if is_given]
    if names:
        text = f"ignored, because it has no meaning for a store: {', '.join(names)}"
        warnings.warn(text, stacklevel=3)


def required(location: Location | None) -> Location:
    """The location. Raises Invalid if it is None."""
    if location is None:
        raise Invalid("no checkpoint is named: give the address of a store, or checkpoint_id")
    return location
