"""Trainers of other libraries whose runs are killed: they continue bit for bit from a store.

The programs are those of examples/. A run that is not killed uses the library's own checkpoints if
it can.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

import cairn
from trainer_runs import assert_continues, train

# The programs import most of the libraries, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(1500)


class Trainer(NamedTuple):
    libraries: tuple[str, ...]
    script: str
    own: tuple[str, ...]
    """Options of the run that is not killed."""
    modes: tuple[tuple[str, ...], ...]
    """Options of the runs that are killed."""
    key: str
    steps: tuple[int, ...]
    """The steps that the store has at the end."""
    store: str = "cairn-store"
    ranks: int = 2
    kills: tuple[int, ...] = (7,)


EVERY_SECOND = (2, 4, 6, 8, 10, 12)
TRAINERS = {
    "deepspeed": Trainer(
        ("deepspeed",), "deepspeed_checkpoints.py", ("--own",), ((), ("--sync",)),
        "mp_rank_00_model_states.module.0.weight", EVERY_SECOND,
    ),
    # Megatron's own format needs CUDA to save.
    "megatron": Trainer(
        ("megatron.core.dist_checkpointing",), "megatron_checkpoints.py", (), ((),), "model.up",
        EVERY_SECOND,
    ),
    "lightning": Trainer(
        ("pytorch_lightning", "torchdata.stateful_dataloader"), "lightning_checkpoints.py", (),
        ((), ("--background",)), "state_dict.model.0.weight", (), ranks=0, kills=(11, 30),
    ),
    # keep_latest_k=2
    "torchtitan": Trainer(
        ("torchtitan.components.checkpoint",), "torchtitan_manager.py",
        ("--own", "--mode", "disabled"),
        tuple(("--mode", mode) for mode in ("disabled", "async", "async_with_pinned_mem")),
        "0.weight", (10, 12), store="checkpoint",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of a trainer that is not killed."""
    runs = {}

    def run(trainer: Trainer):
        for library in trainer.libraries:
            pytest.importorskip(library)
        if trainer.script not in runs:
            folder = tmp_path_factory.mktemp("whole")
            runs[trainer.script] = train(
                trainer.script, folder, *trainer.own, ranks=trainer.ranks
            )
        return runs[trainer.script]

    return run


@pytest.mark.parametrize(
    "name, mode",
    [(name, mode) for name, trainer in TRAINERS.items() for mode in trainer.modes],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_run_that_is_killed_continues_bit_for_bit(tmp_path, whole, name, mode):
    trainer = TRAINERS[name]
    expected = whole(trainer)
    runs = [
        train(trainer.script, tmp_path, *mode, ranks=trainer.ranks, kill_at=kill_at)
        for kill_at in (*trainer.kills, None)
    ]

    assert_continues(expected, runs)
    with cairn.open(tmp_path / trainer.store) as store:
        last = store.steps()[-1]
        assert trainer.steps in ((), tuple(store.steps()))
        assert trainer.key in store.keys(last) and not store.damaged_keys(last)
        assert store.step_info(last).ranks == max(trainer.ranks, 1)


@pytest.mark.parametrize("name, ranks", [("torchtitan", 3), ("megatron", 4)])
def test_another_number_of_ranks_continues(tmp_path, whole, name, ranks):
    trainer = TRAINERS[name]
    expected = whole(trainer)
    first = train(trainer.script, tmp_path, ranks=2, kill_at=7)
    second = train(trainer.script, tmp_path, ranks=ranks)

    assert first.losses and min(second.losses) > 1
    for step, loss in second.losses.items():  # the ranks add in another order
        assert float(loss) == pytest.approx(float(expected.losses[step]), rel=1e-4)
