"""Cairn for JAX: pytrees and sharded arrays, from any mesh to any mesh.

    import cairn.jax

    cairn.jax.save("runs/gpt", 100, {"params": params, "opt_state": opt_state})
    state = cairn.jax.load("runs/gpt", template)     # jax.Array or jax.ShapeDtypeStruct leaves

    with cairn.open("runs/gpt", mode="a") as store:
        handle = cairn.jax.save_async(store, 200, state)
        handle.result()

A step that JAX has written is an ordinary one: :meth:`cairn.Store.read` returns torch tensors, and
:func:`cairn.jax.load` reads the steps of torch. See docs/integrations/jax.md.
"""

from __future__ import annotations

from cairn.jax._load import load
from cairn.jax._save import open, save, save_async

__all__ = ["load", "open", "save", "save_async"]
