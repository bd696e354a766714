"""Vocabulary of all other packages: element types, node kinds, devices, patterns, step numbers."""
