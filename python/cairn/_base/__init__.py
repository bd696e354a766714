"""Vocabulary that every other module uses: element types, tree nodes, devices, key patterns, step numbers."""
