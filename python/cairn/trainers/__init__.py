"""Cairn as the checkpoint storage of trainers, one module per library.

Each module imports its library when it is imported, and ``import cairn`` imports none of them:
``cairn.trainers.lightning``, ``cairn.trainers.torchtitan``, ``cairn.trainers.megatron``,
``cairn.trainers.deepspeed`` and ``cairn.trainers.ray``. docs/integrations describes each of them.
"""
