"""The caller's tensors as sources of a save or targets of a load, and the leaves of a step."""
