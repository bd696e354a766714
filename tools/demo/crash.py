"""Kills this very process with SIGKILL while Cairn is in the middle of writing a step.

No signal handler, no destructor and no flush runs after SIGKILL: what is on disk at that moment is
all that the next run will find.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path


def kill_during_save(store: Path, step: int) -> threading.Thread:
    """Starts a thread that waits for payload of `step` in `store`, then kills the process.

    Whether it struck in time is for the parent to find out: a save may finish first.
    """
    sys.setswitchinterval(0.0005)  # so that the watcher is not kept waiting by the training thread

    def watch() -> None:
        while True:
            for entry in os.scandir(store / "segments"):
                if entry.name.startswith(f"{step}-") and entry.stat().st_size > 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.0002)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
