"""From the contents of a stored step to filled tensors of the caller, or to new ones."""
