"""Concurrent saves and loads: one writer used twice, readers and a writer, forks, Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import threading

import cairn
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn_testing import run_python
from ranks import run_on_ranks, with_ranks
from storages import CAIRN, errors_of, failing
from torch.distributed.checkpoint import DefaultSavePlanner


def test_a_writer_that_still_saves_refuses_another_save(path):
    writing, go_on = threading.Event(), threading.Event()

    class Waiting(DefaultSavePlanner):
        def resolve_data(self, write_item):
            writing.set()
            assert go_on.wait(600)
            return super().resolve_data(write_item)

    writer = CairnWriter(path, step=1)
    first = dcp.async_save({"a": torch.ones(3)}, storage_writer=writer, planner=Waiting())
    assert writing.wait(600)
    with pytest.raises(cairn.Conflict, match="still runs"):
        writer.reset()
    with pytest.raises(cairn.Conflict, match="still runs"):
        writer.close()
    go_on.set()
    first.result()
    dcp.save({"a": torch.zeros(3)}, storage_writer=writer)
    with cairn.open(path) as store:
        assert store.read(step=1)["a"].tolist() == [0.0] * 3


def test_two_async_saves_with_one_stager_keep_apart(tmp_path):
    state = {"x": torch.ones(1 << 20)}
    writers = [
        CairnWriter(tmp_path / name, cache_staged_state_dict=True) for name in ("first", "second")
    ]
    writers[1]._stager = writers[0]._stager
    futures = []
    for value, writer in zip((1, 2), writers):
        state["x"].fill_(value)
        futures.append(dcp.async_save(state, storage_writer=writer))
    for future in futures:
        future.result()
    for value, name in zip((1.0, 2.0), ("first", "second")):
        with cairn.open(tmp_path / name) as store:
            assert store.read()["x"].unique().tolist() == [value]


def load_the_latest(rank, path):
    """For rank 0 the latest step is 1, for rank 1 it is 2."""

    class Late(CairnReader):
        def read_metadata(self, *args, **options):
            dist.barrier()
            if rank == 1:
                with cairn.open(path, mode="a", alone=True) as store:
                    store.save(2, {"x": torch.full((4,), 2.0)})
            return super().read_metadata(*args, **options)

    class Early(CairnReader):
        def read_metadata(self, *args, **options):
            metadata = super().read_metadata(*args, **options)
            dist.barrier()
            return metadata

    target = {"x": torch.zeros(4)}
    reader = (Early if rank == 0 else Late)(path)
    failures = errors_of(dcp.load, target, storage_reader=reader)
    return {rank: str(error) for rank, error in failures.items()}


def test_ranks_do_not_load_different_steps(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"x": torch.ones(4)})
    for failures in run_on_ranks(load_the_latest, str(path), world_size=2):
        assert list(failures) == [1]
        assert "the coordinator has found step 1, this rank step 2" in failures[1]


def test_values_and_tensors_inside_of_them_are_of_one_save(path):
    class Overtaken(CairnReader):
        def read_data(self, plan, planner):
            CAIRN.save({"t": (torch.full((2,), 2.0), 2)}, path)
            return super().read_data(plan, planner)

    CAIRN.save({"t": (torch.ones(2), 1)}, path)
    failures = errors_of(dcp.load, {"t": None}, storage_reader=Overtaken(path))
    assert isinstance(failures[0], cairn.NotFound)
    assert "overwritten" in str(failures[0])


@with_ranks(2)
def test_a_cached_plan_of_a_failed_save_does_not_fail_the_next(rank, path):
    """Rank 1 fails in the first of four saves, before it writes."""
    for step in range(4):
        writer_type = failing(CairnWriter, "write_data", 1) if step == 0 else CairnWriter
        writer = writer_type(path, step=step)
        planner = DefaultSavePlanner(enable_plan_caching=True)
        fails = pytest.raises(dcp.CheckpointException) if step == 0 else contextlib.nullcontext()
        with fails:
            dcp.save({"x": torch.ones(4)}, storage_writer=writer, planner=planner)


class Crafting(DefaultSavePlanner):
    """Gives a pickle, of the protocol that begins like text, that records where it is loaded."""

    said = "import builtins; builtins.was_run = True"

    def transform_object(self, write_item, object):
        return io.BytesIO(f"c__builtin__\nexec\n(V{self.said}\ntR.".encode())


def test_bytes_of_a_planner_are_not_unpickled_unasked(path):
    import builtins

    CAIRN.save({"x": 1}, path, planner=Crafting())
    failures = errors_of(dcp.load, {"x": 0}, storage_reader=CairnReader(path))
    assert isinstance(failures[0], cairn.Invalid)
    assert failures[0].key == "x" and "allow_pickle=True" in str(failures[0])
    assert not hasattr(builtins, "was_run")


def test_a_forked_child_does_not_notice_a_save(path):
    result = run_python(
        """
        import gc, os, sys, torch, warnings
        import torch.distributed.checkpoint as dcp
        from cairn.dcp import CairnWriter
        warnings.simplefilter("ignore")

        class Forking(CairnWriter):
            def finish(self, metadata, results):
                if os.fork() == 0:
                    self._part = None
                    gc.collect()
                    sys.stderr.flush()
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
                super().finish(metadata, results)

        dcp.save({"x": torch.ones(3)}, storage_writer=Forking(sys.argv[1]))
        """,
        path,
    )
    assert "Exception" not in result.stderr
    with cairn.open(path) as store:
        assert store.read()["x"].tolist() == [1.0] * 3


def test_ctrl_c_ends_a_save_at_once_and_the_old_step_stays(path):
    CAIRN.save({"w0": torch.ones(3)}, path)
    result = run_python(
        """
        import os, signal, sys, threading, time, torch, warnings
        import torch.distributed.checkpoint as dcp
        from cairn.dcp import CairnWriter
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def interrupt():
            while os.stat(sys.argv[1] + "/segments").st_nlink and writer._part is None:
                time.sleep(0.001)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        # 64 GiB in little memory: far more than can be written before the signal.
        state = {f"w{i}": torch.zeros(1).expand(1 << 27) for i in range(128)}
        writer = CairnWriter(sys.argv[1])
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            dcp.save(state, storage_writer=writer)
        except BaseException as error:
            print("KeyboardInterrupt" in repr(getattr(error, "failures", error)))
        """,
        path,
    )
    assert result.stdout.split() == ["True"], result.stderr
    with cairn.open(path) as store:
        assert store.read()["w0"].tolist() == [1.0] * 3
