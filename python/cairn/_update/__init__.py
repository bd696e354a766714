"""Updating a state in memory to the newest step of a store."""
