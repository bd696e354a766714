"""The exceptions of Cairn. The class indicates what the caller should do."""

from __future__ import annotations


class Error(Exception):
    """Base class of all errors of Cairn. Only bugs in Cairn raise this class itself.

    The text is one line that states what failed, where, and what to do. The
    location is also available in parts, each ``None`` where it does not apply:

    Attributes:
        key: FQN of the tensor or value.
        step: step number.
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
    """The store, step or key does not exist."""


class Corrupt(Error):
    """Bytes in the store differ from the written bytes: stop, run ``kv-dump verify``, repair."""


class Conflict(Error):
    """Another writer has the store open, or the step already exists."""


class Invalid(Error):
    """The call cannot succeed: fix the arguments or the state of the store."""


class Unavailable(Error):
    """The storage failed (I/O error, permission, no space): fix the cause and try again."""


def refuse(fqn: str, what: str, way_out: str) -> Invalid:
    """The error for a leaf that Cairn cannot save or fill."""
    return Invalid(f"'{fqn}' is {what}: {way_out}", key=fqn)


class Refusals:
    """The refusals of one call, which are raised together."""

    def __init__(self) -> None:
        self.found: list[Invalid] = []

    def add(self, refusal: Invalid) -> None:
        self.found.append(refusal)

    def raise_all(self) -> None:
        """Raises the refusal, or one error that has the texts of the first ten; its key is that of
        the first one. Returns if there is none."""
        if not self.found:
            return
        first = self.found[0]
        if len(self.found) == 1:
            raise first
        texts = "; ".join(str(each) for each in self.found[:_SHOWN])
        more = "; ..." if len(self.found) > _SHOWN else ""
        raise Invalid(
            f"{len(self.found)} keys are refused: {texts}{more}", key=first.key, step=first.step
        )


_SHOWN = 10
