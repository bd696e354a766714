"""Loads: from the contents of a stored step to tensors of the caller, or to new ones."""
