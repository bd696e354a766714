"""Preparation of a save: checks and flattens the state, together with the other ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base.devices import Streams, current_streams
from cairn._base.patterns import all_patterns, clean_prefix, pattern_list
from cairn._base.steps import step_number
from cairn._ranks.ranks import Ranks
from cairn._save.flatten import FlatState, flatten
from cairn._save.multi_rank_save import prepare_together
from cairn._save.options import SaveOptions
from cairn._save.stateful import StatefulAdapter
from cairn._tensors.host_copies import HostCopies
from cairn.errors import Conflict


class PreparedSave(NamedTuple):
    """A save that is ready to run."""

    step: int
    batch: _cairn.Batch
    streams: Streams
    """The current streams of the devices that hold some of the state."""
    arguments: dict[str, Any]
    """Keyword arguments of `_cairn.Store.save`, the fields above included."""


def prepare_save(
    native: _cairn.Store | None,
    ranks: Ranks,
    step: int,
    state: Any,
    options: SaveOptions,
    copies: HostCopies | None,
) -> PreparedSave:
    """Prepares a save of `state` as `step`. Collective.

    Args:
        native: None: the store is not open yet, and the step is not looked for.
        copies: where tensors that C++ cannot read are copied; None: memory of this save alone.

    Raises Conflict or Invalid on all ranks if one of them raises it.
    """

    annotations: dict[str, Any] = {}

    def prepare() -> tuple[dict[str, Any], FlatState]:
        annotations.update(options.annotations())
        arguments = {"step": step_number(step), **options.native()}
        if native is not None:
            _check_new(native, ranks, arguments["step"], options.overwrite)
        prefix = clean_prefix(options.prefix)
        adapter = StatefulAdapter(state, prefix, options.ignore_frozen)
        patterns = all_patterns(pattern_list(options.keys), prefix, adapter.frozen)
        allow_pickle = options.allow_pickle
        return arguments, flatten(
            adapter.state, allow_pickle, ranks, patterns, copies, devices=True
        )

    arguments, flat = prepare_together(ranks, prepare)
    streams = current_streams(flat.batch.devices())
    arguments.update(batch=flat.batch, deadline=ranks.timeout, streams=streams, **annotations)
    return PreparedSave(arguments["step"], flat.batch, streams, arguments)


def _check_new(native: _cairn.Store, ranks: Ranks, step: int, overwrite: bool) -> None:
    """In a multi-rank store, rank 0 checks for all ranks that the step is new, before anything is
    copied. For a single process the C++ side checks it."""
    if ranks.world_size > 1 and ranks.rank == 0 and not overwrite and step in native.steps():
        raise Conflict(
            f"step {step} exists already; overwrite it or give another number", step=step
        )
