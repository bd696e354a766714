"""Scrubs in the background of a process that uses the store."""

from __future__ import annotations

import cairn
import torch
from cairn_testing import flip_byte, segment_files, wait_until


def test_a_scrub_finds_damage_and_new_steps(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.arange(100_000)})
        with store.scrub(max_rate=0, every=0.01) as scrub:
            wait_until(lambda: scrub.passes >= 2)
            assert scrub.damage == () and scrub.damage_count == 0 and scrub.error is None
            store.save(2, {"w": torch.arange(100_000) * 2})
            for segment in segment_files(path):
                flip_byte(segment, 5000)
            wait_until(lambda: scrub.damage_count == 2)
            assert all(isinstance(error, cairn.Corrupt) for error in scrub.damage)
            assert "w" in {error.key for error in scrub.damage}
        passes = scrub.passes
        assert not scrub.is_running
        scrub.stop()
        assert scrub.passes == passes


def test_a_scrub_outlives_the_handle_and_stops_while_it_waits(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.arange(1_000_000)})
        scrub = store.scrub(max_rate=1000)
    wait_until(lambda: scrub.is_running)
    scrub.stop()  # at this rate, the pass takes hours
    assert scrub.passes == 0


def test_a_scrub_reports_how_far_its_pass_is(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.arange(4_000_000)})
        with store.scrub(max_rate=2 << 20) as scrub:  # the pass takes many seconds
            seen = [scrub.progress]
            wait_until(lambda: seen.append(scrub.progress) or 0 < seen[-1][0] < 32_000_000)
        assert {total for _, total in seen} <= {0, 32_000_000}
        assert all(done <= total for done, total in seen)
        with store.scrub() as scrub:
            wait_until(lambda: scrub.passes == 1)
            assert scrub.progress == (32_000_000, 32_000_000)
