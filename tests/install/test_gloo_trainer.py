"""The C++ example with ranks, built against the installed package.

It saves on 4 and resumes on 2.
"""

import json
import re

from test_find_package import ROOT, install_and_build, run

EXAMPLE = ROOT / "examples/gloo_trainer"


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)}


def test_a_run_of_four_ranks_goes_on_with_two_and_with_one_as_if_nothing_had_happened(tmp_path):
    prefix, build = install_and_build(EXAMPLE, tmp_path)
    start = EXAMPLE / "run.sh", build / "gloo_trainer"

    first = run(*start, tmp_path / "store", 4, 60)
    second = run(*start, tmp_path / "store", 2, 120)
    third = run(*start, tmp_path / "store", 1, 140)
    alone = run(*start, tmp_path / "alone", 1, 140)

    assert "from step 0 on 4 ranks: dp 2, tp 2" in first
    assert "from step 60 on 2 ranks: dp 1, tp 2" in second
    assert "from step 120 on 1 ranks: dp 1, tp 1" in third
    resumed = losses(first) | losses(second) | losses(third)
    expected = losses(alone)
    assert sorted(resumed) == sorted(expected) == list(range(20, 141, 20))
    for step, loss in expected.items():  # ranks add numbers up in another order
        assert abs(resumed[step] - loss) <= 1e-6 * loss, step
    assert expected[140] < expected[20] / 20

    steps = json.loads(run(prefix / "bin/kv-dump", "steps", tmp_path / "store", "--json"))
    assert "140" in json.dumps(steps)
    run(prefix / "bin/kv-dump", "verify", tmp_path / "store")
