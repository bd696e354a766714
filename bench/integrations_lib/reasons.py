"""What the page of the integrations states about its figures, written by hand."""

from __future__ import annotations

INTRODUCTION = """# Cairn compared with the checkpoints of training libraries

Measured by `bench/integrations.py --dir DIR --out docs/performance`. Every run is in
[integrations.json](integrations.json).

Machine: {machine}.

Versions: {versions}.

A model of square layers is trained for ten steps with AdamW, and each step is saved: by the library
itself, and by Cairn. Figures are medians of all saves and runs, and the contenders take turns. With
several ranks, the slowest counts. Rows of a library contain the ratio to Cairn in parentheses.
Above 1, Cairn is ahead.

- *stall*: how long the training waits for a save. The save before is complete.
- *longest*: the longest stall of all runs, usually that of a first save.
- *ten saves*: the sum of the times until a save is complete. This is not durable for the libraries,
  which do not sync their files; saves of Cairn are durable.
- *durable*: the same, with a sync of all files of the library after each save, divided among the
  ranks.
- *resume*: restoring the last step in new processes that have imported the library, with no file
  in the page cache. The resumed parameters and optimizer states are equal to those that were saved,
  which each run checks.
- *cached*: the same directly after the training, with what its saves have left in the page cache.
- *MB of ten saves*: the space of all files.

"""
ASYNC = ", async"

_NOT_DURABLE = (
    "The saves of the library end when the page cache has its files. Those of Cairn wait for the "
    "disk. The next column compares saves that are both durable."
)
_NOTHING_SHARED = (
    "All bytes have changed, so that no step shares any with another. Cairn adds the records of "
    "tensors and chunks, and the digests of pages."
)
_IN_THE_CACHE = (
    "The library has written its files through the page cache, where they remain. Cairn writes "
    "past it, and reads from the disk."
)
_FIRST_SAVE = (
    "The first save in the background allocates the memory to which all of them copy: 395 ms for a "
    "state of 300 MB, and 25 ms for each later save (measured by itself, 2026-11-26)."
)
_FEW_BYTES = (
    "Both ranks write little here, and the library only writes. Cairn also reads all of the state, "
    "to find out what has changed, and both ranks wait for one commit: 37 ms for 36 MB of each "
    "rank, of which 8 ms remain without any bytes (measured by itself, 2026-11-26)."
)
_CONTROLLER = (
    "`report` waits for Ray's controller, with and without Cairn. It takes most of the time of "
    "both, and varies more than they differ."
)
REASONS: dict[tuple[str, str, str], str] = {
    ("", "", "saved"): _NOT_DURABLE,
    ("", "full", "bytes"): _NOTHING_SHARED,
    ("", "", "resume_cached"): _IN_THE_CACHE,
    ("", "", "longest_stall" + ASYNC): _FIRST_SAVE,
    ("deepspeed-2", "frozen", "durable"): _FEW_BYTES,
    ("ray", "frozen", "stall"): _CONTROLLER,
    ("ray", "frozen", "longest_stall"): _CONTROLLER,
}
"""By library, workload and figure; an empty text is any. A figure may be followed by ASYNC, for
rivals that save in the background."""
