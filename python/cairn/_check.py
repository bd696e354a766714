"""`Store.check`: whether a state equals a step. `Store.check_state`: a save as a dry run."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from cairn._base.addresses import is_directory
from cairn._base.devices import current_streams
from cairn._base.patterns import all_patterns
from cairn._load.in_place import locate, read_source
from cairn._load.key_errors import missing_keys
from cairn._load.load import LoadOptions
from cairn._opened.opened import Opened
from cairn._save.differing import Compared, differences, samples
from cairn._save.flatten import flatten
from cairn.errors import Refusals

if TYPE_CHECKING:
    from cairn.reports import CheckReport, StateReport

_PROBE_BYTES = 64 << 20


def check(opened: Opened, state: Any, step: int | str | None, options: LoadOptions) -> CheckReport:
    """See `Store.check`."""
    from cairn.reports import CheckReport

    start = time.perf_counter()
    ranks = opened.ranks
    number = opened.number(step)
    ranks.begin("check")
    place = locate(opened, number, opened.tiers)

    def check_own() -> tuple[Any, Any]:
        adapter = options.adapt(state)
        contents, selecting, _ = read_source(adapter, place, options)
        plan = selecting.plan(contents, adapter.state)
        fqns, refused = contents.fqns(), Refusals()
        flat = flatten(
            {fqns[leaf]: plan.node(node)[0] for node, leaf in plan.matches()},
            options.allow_pickle,
            ranks,
            [],
            parts=True,
            refusals=refused,
        )
        flat.batch.take_keys_as_fqns()
        streams = current_streams(flat.batch.devices())
        different, not_comparable, _, _, *counts = place[0].check(contents, flat.batch, streams)
        for fqn, text in _by_fqn(refused).items():
            different.pop(fqn, None)
            not_comparable[fqn] = text
        own = different, not_comparable, plan.missing(), plan.unexpected(), *counts
        return contents, (own, len(flat.batch) > 0)

    contents, replies = ranks.run_and_exchange(check_own)
    found = [own for own, _ in replies]
    missing = _on_ranks([dict.fromkeys(own[2], "") for own in found])
    unexpected = set(found[0][3]).intersection(*(own[3] for own in found))
    if missing and not any(has_common_keys for _, has_common_keys in replies):
        raise missing_keys(tuple(missing), contents, sorted(unexpected))
    return CheckReport(
        step=contents.step,
        different=_on_ranks([own[0] for own in found]),
        not_comparable=_on_ranks([own[1] for own in found]),
        missing=tuple(missing),
        unexpected=tuple(sorted(unexpected)),
        compared_bytes=sum(own[4] for own in found),
        bytes_read=sum(own[5] for own in found),
        seconds=time.perf_counter() - start,
    )


def check_state(opened: Opened, state: Any, options: LoadOptions) -> StateReport:
    """See `Store.check_state`."""
    from cairn.reports import StateReport

    ranks = opened.ranks
    ranks.begin("check_state")

    def check_own() -> tuple[Any, Any]:
        adapter = options.adapt(state)
        patterns = all_patterns(list(options.patterns), options.prefix, adapter.frozen)
        refused, allow_pickle = Refusals(), options.allow_pickle
        flat = flatten(adapter.state, allow_pickle, ranks, patterns, refusals=refused)
        sizes = flat.batch.sizes()
        own_samples: list[tuple[str, str, int]] = []
        if ranks.world_size > 1:
            Compared().take_samples(flat.batch, 0, True, True)
            unusable = _by_fqn(refused)
            found = samples(flat, adapter.buffers())
            own_samples = [one for one in found if one[2] and one[0] not in unusable]
        written: int | None = None
        latest = opened.native.latest()
        if latest is not None:
            contents = opened.native.contents(latest, patterns)
            streams = current_streams(flat.batch.devices())
            own = opened.native.check(contents, flat.batch, streams)
            new = {*own[2], *own[1], *(fqn for fqn, text in own[0].items() if "shape" in text)}
            written = own[6] + sum(nbytes for fqn, nbytes, _ in sizes if fqn in new)
        return None, (
            _by_fqn(refused),
            _sizes(sizes),
            written,
            [fqn for fqn, _, _ in sizes],
            _write_rate(opened) if ranks.rank == 0 else None,
            own_samples,
        )

    _, replies = ranks.run_and_exchange(check_own)
    refused, sizes, written, fqns, rates, sampled = zip(*replies)
    all_sizes: dict[str, int] = {}
    for own_sizes in sizes:
        all_sizes.update(own_sizes)
    first_bytes = sum(all_sizes.values())
    next_bytes = None if None in written else min(sum(written), first_bytes)
    only_on = {
        fqn: holders
        for fqn in sorted(set().union(*fqns))
        if len(holders := tuple(rank for rank, own in enumerate(fqns) if fqn in own)) < len(fqns)
    }
    rate = rates[0]
    return StateReport(
        refused=_on_ranks(list(refused)),
        first_bytes=first_bytes,
        next_bytes=next_bytes,
        bytes_per_second=rate,
        first_seconds=None if rate is None else first_bytes / rate,
        next_seconds=None if rate is None or next_bytes is None else next_bytes / rate,
        only_on=only_on,
        differing={one.fqn: tuple(one.others) for one in differences(list(sampled))},
    )


def _by_fqn(refusals: Refusals) -> dict[str, str]:
    return {error.key or "": str(error) for error in refusals.found}


def _sizes(sizes: list[tuple[str, int, int]]) -> dict[str, int]:
    """Bytes by FQN. Of tensors that begin at the same address, the largest counts."""
    largest: dict[int, tuple[int, str]] = {}
    counted = {fqn: nbytes for fqn, nbytes, address in sizes if address == 0}
    for fqn, nbytes, address in sizes:
        if address != 0 and nbytes > largest.get(address, (-1, ""))[0]:
            largest[address] = nbytes, fqn
    return counted | {fqn: nbytes for nbytes, fqn in largest.values()}


def _write_rate(opened: Opened) -> float | None:
    """Bytes per second that the disk of the store takes, measured with a file without a name. None:
    the store is in no directory, or cannot be written."""
    if opened.mode != "a" or not is_directory(opened.address):
        return None
    block = os.urandom(_PROBE_BYTES // 8)
    try:
        folder = opened.address.removeprefix("file:")
        file = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            start = time.perf_counter()
            for _ in range(8):
                os.write(file, block)
            os.fdatasync(file)
            return _PROBE_BYTES / (time.perf_counter() - start)
        finally:
            os.close(file)
    except OSError:  # no space, or a file system without such files
        return None


def _on_ranks(found: list[dict[str, str]]) -> dict[str, str]:
    """What the ranks have found, by FQN. In a multi-rank store, each rank is named."""
    merged: dict[str, list[str]] = {}
    for rank, own in enumerate(found):
        for fqn, text in own.items():
            merged.setdefault(fqn, []).append(text if len(found) == 1 else f"rank {rank}: {text}")
    return {fqn: "; ".join(texts) for fqn, texts in sorted(merged.items())}
