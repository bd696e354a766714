"""A change of what others rely on is a decision: it changes a list in tests/style/public, and is in
CHANGELOG.md. docs/stability.md states what may change in which version."""

import public_api
import pytest


@pytest.mark.parametrize("name", public_api.LISTS)
def test_the_public_api_is_the_recorded_one(name):
    if name in ("options", "json") and not (public_api.BIN / "kv-dump").exists():
        pytest.skip("the programs are not built")
    recorded = (public_api.RECORDED / f"{name}.txt").read_text().splitlines()
    found = public_api.LISTS[name]()
    removed, added = set(recorded) - set(found), set(found) - set(recorded)
    assert not removed and not added, (
        f"removed {sorted(removed)}, added {sorted(added)}: if this was decided, run "
        f"tests/style/public_api.py, and state it in CHANGELOG.md"
    )
    assert len(found) > 50
