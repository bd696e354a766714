"""Tensors of the caller as sources of a save and targets of a load, and the leaves of a stored step."""
