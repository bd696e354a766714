"""Small files that are replaced at once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, text: str, *, durable: bool) -> None:
    """Writes a file: readers see the old one or the new one. If ``durable``, a power failure does
    not undo it. An error leaves the old file as it was."""
    # A new file ("x"): what exists under such a name belongs to somebody else.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with open(temporary, "x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    if durable:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
