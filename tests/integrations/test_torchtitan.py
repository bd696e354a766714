"""torchtitan's checkpoint configuration, wrappers, optimizers and dataloader, with Cairn's
manager."""

from __future__ import annotations

import pytest

pytest.importorskip("torchtitan.components.checkpoint")

import cairn
from trainer_runs import assert_continues, train

SCRIPT = "torchtitan_manager.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is not killed, with torchtitan's own manager."""
    folder = tmp_path_factory.mktemp("own")
    return train(SCRIPT, folder, "--own", "--mode", "disabled", ranks=2)


@pytest.mark.parametrize("mode", ["disabled", "async", "async_with_pinned_mem"])
def test_a_run_that_is_killed_continues_bit_for_bit(tmp_path, whole, mode):
    first = train(SCRIPT, tmp_path, "--mode", mode, ranks=2, kill_at=7)
    second = train(SCRIPT, tmp_path, "--mode", mode, ranks=2)

    assert_continues(whole, [first, second])
    with cairn.open(tmp_path / "checkpoint") as store:
        assert store.steps() == [10, 12]  # keep_latest_k=2
        assert store.step_info(10).ranks == 2
        assert {"0.weight", "2.bias"} < set(store.keys(10))
        assert not store.damaged_keys(12)


def test_another_number_of_ranks_continues(tmp_path, whole):
    first = train(SCRIPT, tmp_path, ranks=2, kill_at=7)
    second = train(SCRIPT, tmp_path, ranks=3)

    assert first.losses
    for step, loss in second.losses.items():  # the ranks add in another order
        assert float(loss) == pytest.approx(float(whole.losses[step]), rel=1e-4)
    assert min(second.losses) > 1
