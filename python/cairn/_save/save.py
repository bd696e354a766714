"""Saves: checks and flattens the state, together with the other ranks, and writes it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.addresses import step_number
from cairn._base.devices import current_streams
from cairn._base.patterns import all_patterns, clean_prefix, pattern_list
from cairn._opened.continued import base_arguments, continue_from_loaded, noted_base
from cairn._opened.handle import Follow, SaveHandle
from cairn._opened.opened import Opened
from cairn._ranks.ranks import Ranks
from cairn._save.flatten import FlatState, flatten
from cairn._save.multi_rank_save import prepare_together
from cairn._save.options import SaveOptions
from cairn._tensors.host_copies import HostCopies
from cairn._tensors.stateful import StatefulAdapter
from cairn.errors import Conflict, Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn._mirror.options import Mirrors
    from cairn.reports import SaveReport


def save(
    opened: Opened, step: int, state: Any, options: SaveOptions, mirror: Mirrors | None
) -> SaveReport:
    """See `Store.save`."""
    # Copies that save_async has made are reused, and locked until they are written.
    copies = opened.copies if len(opened.copies) > 0 else None
    with nullcontext() if copies is None else opened.copies_lock:
        mirrors = opened.checked_mirrors(mirror)
        report = opened.native.save(**_begin(opened, "save", step, state, options, copies))
        opened.ranks.warn()
    opened.mirrors.submit(report.step, mirrors, None, options.overwrite)
    return report


def save_async(
    opened: Opened,
    step: int,
    state: Any,
    options: SaveOptions,
    mirror: Mirrors | None,
    progress: Progress,
) -> SaveHandle:
    """See `Store.save_async`."""
    mirrors = opened.checked_mirrors(mirror)
    with opened.copies_lock:
        is_stated = bool(options.tuned("unchanged")) and opened.ranks.world_size == 1
        known = opened.known if is_stated else None
        opened.known = native = None
        while native is None:  # another thread has given tensors of a known state other memory
            arguments = _begin(opened, "save_async", step, state, options, opened.copies, known)
            known = None
            # The store keeps them alive even if Ctrl-C arrives before there is a handle.
            tensors = arguments["batch"].device_owners()
            opened.unstaged.append(tensors)
            try:
                native = opened.native.save_async(**arguments)
            except Exception:
                opened.unstaged.pop()
                raise
        if is_stated and arguments["batch"].release():
            opened.known = arguments["batch"]
        follow = Follow(progress, opened.ranks.rank, opened.mirrors)
        handle = SaveHandle(native, arguments["step"], tensors, arguments["streams"], follow)
        opened.last_save = handle
        opened.unstaged = [tensors]  # earlier saves have ended
    handle.job = opened.mirrors.submit(arguments["step"], mirrors, native, options.overwrite)
    opened.ranks.warn()
    return handle


def _begin(
    opened: Opened,
    call: str,
    step: int,
    state: Any,
    options: SaveOptions,
    copies: HostCopies | None,
    known: _cairn.Batch | None = None,
) -> dict[str, Any]:
    opened.ranks.begin(call)
    arguments = prepare_save(opened, opened.ranks, step, state, options, copies, known)
    continue_from_loaded(opened.native, arguments["step"])
    return arguments


def prepare_save(
    opened: Opened | None,
    ranks: Ranks,
    step: int,
    state: Any,
    options: SaveOptions,
    copies: HostCopies | None,
    known: _cairn.Batch | None = None,
) -> dict[str, Any]:
    """The keyword arguments of `_cairn.Store.save` for `state` as `step`. Collective.

    Args:
        opened: None: the store is not open yet, and the step is not looked for.
        copies: where tensors that C++ cannot read are copied; None: memory of this save alone.
        known: the released batch of a state that may be the same.

    Raises Conflict or Invalid on all ranks if one of them raises it.
    """

    annotations: dict[str, Any] = {}
    differing = options.tuned("differing")
    buffers: set[str] = set()
    base = {} if opened is None else base_arguments(opened)

    def prepare() -> tuple[dict[str, Any], FlatState]:
        if opened is not None:
            opened.begin_change()
        if differing not in (None, "refuse", "warn", "ignore"):
            raise Invalid(f"differing={differing!r}: give 'refuse', 'warn' or 'ignore'")
        annotations.update(options.annotations())
        arguments = {"step": step_number(step), **options.native()}
        if arguments.get("base_step") is None and arguments.get("incremental", True):
            arguments |= base
        if opened is not None:
            _check_new(opened.native, ranks, arguments["step"], options.overwrite)
        prefix = clean_prefix(options.prefix)
        adapter = StatefulAdapter(state, prefix, bool(options.tuned("ignore_frozen")))
        if ranks.world_size > 1:
            buffers.update(adapter.buffers())
        patterns = all_patterns(pattern_list(options.keys), prefix, adapter.frozen)
        allow_pickle = options.allow_pickle
        return arguments, flatten(adapter.state, allow_pickle, ranks, patterns, copies, known=known)

    def returned_to(arguments: dict[str, Any]) -> dict[str, Any]:
        has_base = base or arguments.get("base_step") is not None
        if opened is None or has_base or not arguments.get("incremental", True):
            return {}
        return noted_base(opened.native, arguments["step"])

    arguments, flat = prepare_together(ranks, prepare, differing, lambda: buffers, returned_to)
    streams = current_streams(flat.batch.devices())
    place = {"batch": flat.batch, "streams": streams, "deadline": ranks.timeout}
    return {**arguments, **annotations, **place}


def _check_new(native: _cairn.Store, ranks: Ranks, step: int, overwrite: bool) -> None:
    """In a multi-rank store, rank 0 checks for all ranks that the step is new, before anything is
    copied. For a single process the C++ side checks it."""
    if ranks.world_size > 1 and ranks.rank == 0 and not overwrite and step in native.steps():
        raise Conflict(
            f"step {step} exists already; overwrite it or give another number", step=step
        )
