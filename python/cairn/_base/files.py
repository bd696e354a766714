"""Files that are replaced at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cairn.errors import Invalid, Unavailable


@contextmanager
def replacing(
    path: str | os.PathLike[str], placed: Callable[[], None] = lambda: None
) -> Iterator[BinaryIO]:
    """A file that gets its name when the block ends: readers see the old file or the new one, and a
    power failure does not undo it. `placed` is called as soon as it has its name.

    After an error the old file is as it was. Raises Unavailable for errors of the file system, and
    Invalid if the path is something else than a file.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        text = "this is not a regular file, and would be replaced by one; name another file"
        raise Invalid(f"{text} (file {path})")
    temporary = path.with_name(f"{path.name}.{secrets.randbits(63)}.tmp")
    try:
        with open(temporary, "xb") as file:  # never a file of somebody else
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        placed()
        sync_folder(path.parent)
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            with suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            text = f"cannot write the file: {error.strerror} (file {path})"
            raise Unavailable(text) from None
        raise


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
