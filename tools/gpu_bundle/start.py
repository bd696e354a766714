"""Unpacks bundle.tar.gz, which is next to this file, and runs run_bundle.py, which is in it.

The programs are compressed because the folder is copied to the machine with the GPU. Steps:

1. Compare the archive with bundle.tar.gz.sha256. An incomplete copy of the folder ends here.
2. If unpacked-DIGEST exists, the programs are complete: continue with step 5.
3. Extract the archive to a new folder next to it, unpacking-RANDOM.
4. Rename the new folder to unpacked-DIGEST, and remove the programs of older bundles.
5. Run run_bundle.py of that folder.

The name contains the digest, so a bundle that is copied over an older one never runs the older
programs, and several machines can start from one shared folder at once. If this folder is
read-only, step 3 uses a temporary folder (TMPDIR), which is removed at the end.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHIVE = HERE / "bundle.tar.gz"
_DIGEST_DIGITS = 12  # in the name of the unpacked programs
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


class Failed(Exception):
    """States why nothing can run, and what to do."""


def archive_digest() -> str:
    """Returns the archive's SHA-256 after comparing it with the one in the .sha256 file."""
    try:
        wanted = Path(f"{ARCHIVE}.sha256").read_text().partition(" ")[0]
        found = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
    except OSError as error:
        raise Failed(
            f"cannot read the programs of this bundle: {error}. Copy the complete folder again."
        ) from None
    if found != wanted:
        raise Failed(
            f"{ARCHIVE} is damaged or incomplete: its SHA-256 is {found}, not {wanted}. "
            "Copy the complete folder again."
        )
    return found


def unpacked_mib() -> int:
    """Returns the size of the archive's contents, which gzip writes into the last 4 bytes."""
    with ARCHIVE.open("rb") as archive:
        archive.seek(-4, os.SEEK_END)
        return (int.from_bytes(archive.read(), "little") >> 20) + 1


def other_place(folder: Path) -> str:
    """Returns how to have the programs unpacked elsewhere than to `folder`."""
    if folder.parent == HERE:
        return f"move {HERE} to another disk"
    return "set TMPDIR to a folder on another disk"


def extract(folder: Path) -> None:
    # Python 3.11.4 and newer can refuse what an archive should not contain.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, **options)
        # Other users may run the programs too; mkdtemp gives its folder to this user only.
        folder.chmod(0o755)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise Failed(
            f"cannot unpack the programs, which need {unpacked_mib()} MiB, into {folder.parent}: "
            f"{error}. Free space there, or {other_place(folder)}."
        ) from None


def unpack_to(home: Path, new: Path) -> None:
    """Extracts the archive to `new`, which is removed on any error, and renames it to `home`."""
    try:
        extract(new)
        try:
            new.rename(home)
        except OSError:
            # Another machine with the same bundle may have been faster.
            if not home.is_dir():
                raise
    except OSError as error:
        raise Failed(f"cannot rename {new} to {home}: {error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for older in HERE.glob("unpacked-" + "[0-9a-f]" * _DIGEST_DIGITS):
        if older != home and not older.is_symlink():
            shutil.rmtree(older, ignore_errors=True)


def new_folder() -> Path | None:
    """Creates a folder next to the archive; returns None if that is not permitted."""
    try:
        return Path(tempfile.mkdtemp(prefix="unpacking-", dir=HERE))
    except OSError as error:
        if error.errno in READ_ONLY:
            return None
        raise Failed(f"cannot create a folder in {HERE}: {error}") from None


@contextmanager
def temporary_folder() -> Iterator[Path]:
    try:
        folder = tempfile.mkdtemp(prefix="cairn-gpu-bundle-")
    except OSError as error:
        raise Failed(
            f"{HERE} is read-only, and there is no temporary folder for the programs: {error}. "
            "Set TMPDIR to a folder with space."
        ) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def programs() -> Iterator[Path]:
    """Yields the folder of the unpacked programs; a temporary one is removed afterwards."""
    home = HERE / f"unpacked-{archive_digest()[:_DIGEST_DIGITS]}"
    if not home.is_dir():
        new = new_folder()
        if new is None:
            with temporary_folder() as folder:
                extract(folder)
                yield folder
            return
        unpack_to(home, new)
    yield home


def run(folder: Path) -> int:
    for program in (folder / "bin").iterdir():
        if not os.access(program, os.X_OK):
            raise Failed(
                f"{program} cannot be executed: {folder.parent} seems to be mounted with noexec; "
                f"{other_place(folder)}."
            )
    command = [sys.executable, str(folder / "run_bundle.py"), "--folder", str(HERE)]
    status = subprocess.run([*command, *sys.argv[1:]], check=False).returncode
    return status if status >= 0 else 128 - status


def main() -> int:
    # Without this, a batch system that ends the run would leave the temporary folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with programs() as folder:
            return run(folder)
    except Failed as error:
        print(f"run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
