"""The mirrors of stores that this process saves into without a `Store`, as `cairn.dcp` does.

They belong to the process, because the writer of one save may be gone while its step is copied. At
the end of Python, the copies are waited for. A forked child starts without mirrors.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cairn._base.addresses import canonical_address
from cairn._base.open_options import OpenOptions
from cairn._mirror.mirrored_saves import MirroredSaves
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._mirror.options import Mirror
    from cairn.reports import MirrorStatus

_MAX_IDLE = 4
"""Stores whose mirrors remain open between saves. A job may save each checkpoint into its own."""

_lock = threading.Lock()
_saves: dict[str, MirroredSaves] = {}
"""By canonical address of the store, the one that was used last at the end. Guarded by _lock."""
_chains: dict[tuple[str, ...], str] = {}
"""The store that the mirrors of a chain belong to, by their canonical addresses. Guarded by
_lock."""


def check(address: str, mirrors: tuple[Mirror, ...]) -> None:
    """Raises Invalid if a mirror has other options, or belongs to another store."""
    if mirrors:
        # `submit` and `wait` follow the commit, and must not fail.
        import cairn._base.progress
        import cairn._mirror.worker  # noqa: F401
    with _lock:
        _check(address, mirrors)


def submit(
    address: str,
    step: int,
    mirrors: tuple[Mirror, ...],
    *,
    uuid: str,
    overwrite: bool,
    earlier_steps: Iterable[int],
) -> None:
    """Copies a durable step to the mirrors whose ``every`` divides it, in the background.

    The first call for a chain of mirrors lets them catch up with ``earlier_steps``, which an
    earlier process may have saved. Raises as `check`.
    """
    if not mirrors:
        return
    with _lock:
        chain = _check(address, mirrors)
        canonical = canonical_address(address)
        saves = _saves.pop(canonical, None)
        if saves is not None and saves.uuid != uuid:  # another store has this address now
            saves.close(interrupted=True)
            saves = None
            _chains.pop(chain, None)
        if saves is None:
            saves = MirroredSaves(address, OpenOptions(), uuid)
        _saves[canonical] = saves
        _close_idle()
        if chain not in _chains:
            _chains[chain] = canonical
            saves.catch_up([earlier for earlier in earlier_steps if earlier != step], mirrors)
        saves.submit(step, mirrors, None, overwrite)


def pinned(address: str) -> set[int]:
    """The steps of a store that must not be pruned, because they wait for a copy."""
    saves = _find(address)
    return set() if saves is None else saves.pinned()


def wait(address: str, timeout: float | None) -> None:
    """Waits until no step of the store waits for its copy. See `Store.wait_mirrored`."""
    saves = _find(address)
    if saves is not None:
        saves.wait_for_all(timeout)


def status(address: str) -> list[MirrorStatus]:
    """The state of each mirror of the store in this process."""
    saves = _find(address)
    return [] if saves is None else saves.status()


def _find(address: str) -> MirroredSaves | None:
    with _lock:
        return _saves.get(canonical_address(address))


def _check(address: str, mirrors: tuple[Mirror, ...]) -> tuple[str, ...]:
    # Requires _lock. Returns the canonical addresses of the mirrors.
    canonical = canonical_address(address)
    chain = tuple(canonical_address(str(mirror)) for mirror in mirrors)
    for other, store in _chains.items():
        shared = set(other) & set(chain)
        if shared and (store != canonical or other != chain):
            whose = "other mirrors of this store" if store == canonical else f"the store {store}"
            raise Invalid(f"mirror {min(shared)}: it already belongs to {whose}")
    if canonical in _saves:
        _saves[canonical].check(mirrors)
    return chain


def _close_idle() -> None:
    # Requires _lock. Their threads and open stores would otherwise live as long as the process.
    idle = [address for address, saves in _saves.items() if saves.wait(0)]
    for address in idle[: max(0, len(_saves) - 1 - _MAX_IDLE)]:
        if address != next(reversed(_saves)):
            _close(address, _saves.pop(address))


def _close(address: str, saves: MirroredSaves, *, failed: bool = False) -> None:
    try:
        saves.close(failed=failed)
    except Exception as error:
        with contextlib.suppress(RuntimeWarning):  # a filter that raises must not fail a save
            warnings.warn(f"the mirrors of {address}: {error}", RuntimeWarning, stacklevel=2)
    for chain in [chain for chain, store in _chains.items() if store == address]:
        del _chains[chain]


def close_all() -> None:
    """Waits for the copies, and closes the mirrors. Saves that follow open them again."""
    failed = getattr(sys, "last_value", None) is not None
    with _lock:
        for address in list(_saves):
            _close(address, _saves.pop(address), failed=failed)


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold it
    _lock = threading.Lock()
    _saves.clear()
    _chains.clear()


atexit.register(close_all)
os.register_at_fork(after_in_child=_forget_in_child)
