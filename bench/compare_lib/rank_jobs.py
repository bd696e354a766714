"""Runs jobs with several ranks: starts a process per rank, starts them together, adds up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from compare_lib.peers.base import Reported, Steps, sync_path
from compare_lib.states import State

RANKS = 4
_JOB = Path(__file__).with_name("rank_job.py")


class RanksOfDcp:
    """The workloads of a torch.distributed.checkpoint storage on several ranks."""

    storage: str
    """"dcp" or "cairn", see rank_job.py."""
    directory: Path
    scratch: Path

    def ranks_save(self, state: State) -> Steps:
        yield from self._run(state, "save")

    def ranks_load(self, state: State) -> Steps:
        yield from self._run(state, "load")

    def _run(self, state: State, verb: str) -> Steps:
        path = self.directory / "ranks"
        self.scratch.mkdir(parents=True, exist_ok=True)
        rendezvous = self.scratch / "rendezvous"
        job = [str(rendezvous), self.storage, verb, str(path)]
        ranks = [_start([str(state.scale), str(rank), str(RANKS), *job]) for rank in range(RANKS)]
        try:
            for rank in ranks:
                _read_line(rank)
            yield
            for rank in ranks:
                rank.stdin.write("go\n")
                rank.stdin.flush()
            spent = [json.loads(_read_line(rank)) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if verb == "save" and self.storage == "dcp":
            sync_path(path)
        yield Reported(
            seconds=spent[0]["seconds"],
            cpu_seconds=sum(each["cpu_seconds"] for each in spent),
            peak_bytes=max(each["peak_bytes"] for each in spent),
            read_bytes=sum(each["read_bytes"] for each in spent),
            write_bytes=sum(each["write_bytes"] for each in spent),
        )


def _start(arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(_JOB), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _read_line(rank: subprocess.Popen) -> str:
    line = rank.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with status {rank.wait()}; its output is in peers.log")
    return line
