"""State-dict tools: supported versions of private collectives of torch.distributed.

Each function has the name, arguments and results of its counterpart in
``torch.distributed._state_dict_utils``, which has a leading underscore; the docstrings describe the
differences. Communication uses Cairn's own connections, with a deadline, in bounded memory, and
with the same outcome on all ranks. Errors are :class:`cairn.Invalid` where torch raises
``ValueError`` or ``AssertionError``.

    from cairn.state_dict import gather_state_dict

    whole = gather_state_dict(model.state_dict(), cpu_offload=True, ranks_only=(0,))
"""

from cairn.state_dict._collectives import (
    broadcast_state_dict,
    distribute_state_dict,
    gather_state_dict,
    transport,
)

__all__ = [
    "broadcast_state_dict",
    "distribute_state_dict",
    "gather_state_dict",
    "transport",
]
