"""Saves into a store that is opened for one call."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cairn import _cairn
from cairn._base.addresses import absolute_address
from cairn._base.open_options import OpenOptions
from cairn._ranks.ranks import Ranks, choose_ranks, default_group
from cairn._save.differing import Compared
from cairn._save.options import SaveOptions
from cairn._save.save import prepare_save
from cairn.store import Store

if TYPE_CHECKING:
    from cairn.reports import SaveReport

_compared: WeakKeyDictionary[Any, dict[str, Compared]] = WeakKeyDictionary()
"""What calls have compared, by process group and address."""


def save_by_address(
    address: str | os.PathLike[str], step: int, state: Any, *, alone: bool = False, **options: Any
) -> SaveReport:
    """`Store.save` into a store that is opened for this call, and created if it does not exist.
    Raises before that if the state cannot be saved, so that no empty store is left. Collective,
    unless ``alone``."""
    inspect.signature(Store.save).bind(None, step, state, **options)  # raises TypeError
    if not isinstance(options.get("tags", ()), str):
        options["tags"] = tuple(options.get("tags", ()))  # iterated twice
    opening = OpenOptions(alone=alone)
    ranks = choose_ranks(None, alone, opening.timeout)
    if ranks.world_size > 1:  # the next call is not the first save
        by_address = _compared.setdefault(default_group(), {})
        ranks.compared = by_address.setdefault(absolute_address(address), Compared())
    if options.get("mirror") is not None:
        from cairn._mirror.options import mirror_chain

        mirror_chain(options["mirror"], absolute_address(address))
    check_save(address, ranks, step, state, options)
    with Store(address, "a", ranks, opening) as store:
        return store.save(step, state, **options)


def check_save(
    address: str | os.PathLike[str], ranks: Ranks, step: int, state: Any, options: dict[str, Any]
) -> None:
    """Raises what a save raises whatever the store contains, and NotFound if the base step does not
    exist. Reads no payload. Collective. On several ranks, C++ checks its part (a name with NUL, a
    value that is too large) only during the save."""
    known = {name: value for name, value in options.items() if name in SaveOptions._fields}
    chosen = SaveOptions(**known)
    base_step = chosen.tuned("base_step")
    if base_step is not None and ranks.world_size == 1:
        with Store(address, "r", None, OpenOptions(alone=True)) as store:
            store.step_info(base_step)
    arguments = prepare_save(None, ranks, step, state, chosen, None)
    if ranks.world_size == 1:
        _cairn.check_save(**arguments)
