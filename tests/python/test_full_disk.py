"""A disk that is full on one rank, in a small file system that only the test sees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Mounts the file system, and runs the ranks in it.
PROGRAM = """
import os, subprocess, sys
import pytest, torch, cairn, torch.distributed as dist

folder = sys.argv[1]
if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder]) != 0:
    sys.exit(9)
rank = 0
while rank < 3 and os.fork() > 0:
    rank += 1
if rank == 3:
    sys.exit(any([os.wait()[1] for _ in range(3)]))

dist.init_process_group("gloo", init_method=f"file://{folder}-meeting", rank=rank, world_size=3)

def state(full, size=1 << 20):  # 4 MiB on each rank, or 16 MiB on the one that is full
    own = torch.rand(size) if full in (rank, None) else torch.zeros(3)
    return {"all": torch.ones(100), f"own.{rank}": own}

def write(step, full):
    with store.writer(step) as writer:
        for name, value in state(full, 4 << 20).items():
            if rank == 0 or name != "all":
                writer.add(name, value)

store = cairn.open(f"{folder}/store", mode="a", grace=3600)
store.save(1, state(None))
store.delete(1)
saves = {
    "save": lambda full: store.save(2, state(full, 4 << 20)),
    "save_async": lambda full: store.save_async(2, state(full, 4 << 20)).result(),
    "writer": lambda full: write(2, full),
}
for call in saves.values():
    for full in (1, 2):
        with pytest.raises(cairn.Unavailable, match="[Nn]o space left on .*device") as raised:
            call(full)
        text = str(raised.value)
        # The others may have found no space for what they write, either.
        assert text.startswith(("cannot write", "rank")), text
        if "cannot write the segment" in text:
            assert "bytes of deleted steps wait for readers" in text
        assert raised.value.file.startswith(f"{folder}/store")
        assert store.steps() == []
        dist.barrier()
if rank == 0:
    subprocess.check_call(["mount", "-o", "remount,size=100m", folder])
dist.barrier()
for step, call in enumerate((store.save, lambda *given: store.save_async(*given).result())):
    call(step, state(1, 4 << 20))
write(2, 2)
dist.barrier()
assert store.steps() == [0, 1, 2]
store.close()
"""


def test_a_full_disk_on_one_rank_is_named_on_all_ranks_and_the_next_save_succeeds(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", folder]).returncode:
        pytest.skip("no file system can be mounted here")
    ended = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
