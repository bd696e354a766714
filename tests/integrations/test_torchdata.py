"""`Saver(dataloader=...)` with torchdata's `StatefulDataLoader`, also on other numbers of ranks."""

from __future__ import annotations

import pytest

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

import cairn
import torch
import torch.distributed as dist
from cairn.torch import Saver
from ranks import run_on_ranks
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SAMPLES, BATCH = 48, 2


class Loader(stateful_dataloader.StatefulDataLoader):
    """The samples of this rank: the numbers 0 to 47, shuffled by a seed."""

    def __init__(self, workers: int = 0) -> None:
        data = list(range(SAMPLES))
        sampler = StatefulDistributedSampler(data, shuffle=True, seed=3, drop_last=False)
        # The ranks of these tests cannot start the servers that other contexts need.
        context = "fork" if workers else None
        super().__init__(
            data, BATCH, sampler=sampler, num_workers=workers, multiprocessing_context=context
        )


class SelfMade:
    """An iterator that can be repartitioned: it keeps what each rank has not used yet."""

    def __init__(self) -> None:
        self.left = list(range(dist.get_rank(), SAMPLES, dist.get_world_size()))

    def __iter__(self):
        while self.left:
            batch, self.left = self.left[:BATCH], self.left[BATCH:]
            yield torch.tensor(batch)

    def state_dict(self) -> dict:
        return {"left": list(self.left)}

    def load_state_dict(self, state: dict) -> None:
        self.left = list(state["left"])

    def repartition(self, states: list) -> None:
        left = sorted(sample for state in states for sample in state["left"])
        self.left = left[dist.get_rank() :: dist.get_world_size()]


def train(rank, path, make, batches, workers=0):
    """Resumes, uses some batches, and saves. Returns the step, and the samples that were used."""
    loader = make(workers) if make is Loader else make()
    used = []
    with cairn.open(path, mode="a", timeout=60) as store:
        with Saver(store, every=1000, dataloader=loader) as saver:
            state = {"weight": torch.zeros(4)}
            try:
                done = saver.resume(state)
            except cairn.Invalid as error:
                return str(error)
            step = 0 if done is None else int(done)
            for batch in loader:
                used += batch.tolist()
                step += 1
                if len(used) == batches * BATCH:
                    break
            saver.save(step, {"weight": torch.full((4,), float(step))})
    return step, used


def used_by(outcome) -> list[int]:
    return sorted(sample for _, used in outcome for sample in used)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_number_of_ranks_continues_with_the_next_batch(path, workers):
    whole = run_on_ranks(train, path / "whole", Loader, 12, workers, world_size=2)
    first = run_on_ranks(train, path / "parts", Loader, 5, workers, world_size=2)
    second = run_on_ranks(train, path / "parts", Loader, 7, workers, world_size=2)

    for rank in range(2):
        assert first[rank][1] + second[rank][1] == whole[rank][1]
    with cairn.open(path / "parts") as store:
        assert store.read("dataloader.world_size", step=5) == {"dataloader": {"world_size": 2}}
        assert set(store.read("dataloader.ranks", step=5)["dataloader"]["ranks"]) == {"0", "1"}


@pytest.mark.parametrize("make", [Loader, SelfMade])
@pytest.mark.parametrize("before, after", [(2, 1), (1, 3), (3, 2), (2, 4)])
def test_other_ranks_use_each_remaining_sample_once(path, make, before, after):
    first = run_on_ranks(train, path, make, 6 // before, world_size=before)
    second = run_on_ranks(train, path, make, 2, world_size=after)
    third = run_on_ranks(train, path, make, 1000, world_size=after)

    assert len(used_by(first)) == 6 // before * before * BATCH
    assert len(used_by(second)) == 2 * after * BATCH
    assert used_by([*first, *second, *third]) == list(range(SAMPLES))


def test_samples_that_cannot_be_divided_are_refused_before_anything_changes(path):
    run_on_ranks(train, path, Loader, 5, world_size=2)

    outcome = run_on_ranks(train, path, Loader, 1, world_size=3)

    assert "of 2 ranks, and this job has 3: the 20 samples" in outcome[0]
    assert "resume with that number of ranks" in outcome[0]
    assert all(outcome[0] in text for text in outcome)


def test_a_dataloader_with_workers_is_refused_on_other_ranks(path):
    run_on_ranks(train, path, Loader, 6, 1, world_size=2)

    outcome = run_on_ranks(train, path, Loader, 1, 1, world_size=1)

    assert "num_workers=0" in outcome[0]


def test_the_end_of_an_epoch_is_the_begin_of_the_next_on_other_ranks(path):
    run_on_ranks(train, path, Loader, 1000, world_size=2)

    outcome = run_on_ranks(train, path, Loader, 1000, world_size=3)

    assert used_by(outcome) == list(range(SAMPLES))


class Unknown(SelfMade):
    repartition = None


def test_an_unknown_dataloader_is_refused_on_other_ranks_only(path):
    run_on_ranks(train, path, Unknown, 1, world_size=2)

    assert "repartition(states)" in run_on_ranks(train, path, Unknown, 1, world_size=1)[0]
    assert run_on_ranks(train, path, Unknown, 1, world_size=2)[0][0] == 2


def test_wrong_uses_are_refused(path):
    with cairn.open(path, mode="a") as store:
        with pytest.raises(cairn.Invalid, match="state_dict and load_state_dict"):
            Saver(store, every=1, dataloader=[1, 2], signals=())
        loader = stateful_dataloader.StatefulDataLoader([1, 2, 3])
        with Saver(store, every=1, dataloader=loader) as saver:
            with pytest.raises(cairn.Invalid, match="without the key 'dataloader'"):
                saver.save(1, {"dataloader": 1})
            with pytest.raises(cairn.Invalid, match="a dict"):
                saver.save(1, torch.nn.Linear(1, 1))
        store.save(2, {"a": 1})
        with Saver(store, every=1, dataloader=loader) as saver:
            with pytest.raises(cairn.NotFound, match="dataloader=None"):
                saver.resume({"a": 0})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"
