"""What can go wrong, as exceptions; the class says what to do about it."""

from __future__ import annotations


class Error(Exception):
    """Base of all errors of Cairn. Raised itself only for bugs of Cairn.

    The text is one line that says what, where, and what to do. The place is also
    given in parts, each ``None`` where it does not apply:

    Attributes:
        key: FQN of the tensor or value.
        step: number of the step.
        file: path of the file.
        offset: position in ``file``, in bytes.
    """

    key: str | None
    step: int | None
    file: str | None
    offset: int | None

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        step: int | None = None,
        file: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.step = step
        self.file = file
        self.offset = offset


class NotFound(Error):
    """There is no such store, step or key: ask for something else."""


class Corrupt(Error):
    """Bytes in the store are not what was written: stop, run ``kv-dump verify``, repair."""


class Conflict(Error):
    """Another writer has the store open, or the step exists already."""


class Invalid(Error):
    """The call cannot be carried out as it is: fix the arguments or the state of the store."""


class Unavailable(Error):
    """The storage did not do it now (I/O error, permission, no space): mend that and try again."""


def refuse(fqn: str, what: str, way_out: str) -> Invalid:
    """The error for a leaf that cannot be taken."""
    return Invalid(f"'{fqn}' is {what}: {way_out}", key=fqn)
