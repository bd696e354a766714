"""Preparation of a save: from the state of the caller to the batch that the C++ side writes."""
