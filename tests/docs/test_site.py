"""tools/docs.sh builds the site without warnings, and the site needs no network."""

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="tools/setup.sh --docs installs python/requirements-docs.txt")
if shutil.which("doxygen") is None:
    pytest.skip("tools/setup.sh --docs installs doxygen", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "build" / "site" / "html"
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["']([^"']+)|<link[^>]+href=["']([^"']+)"""
)


@pytest.fixture(scope="module")
def site() -> Path:
    (ROOT / "build" / "site").mkdir(parents=True, exist_ok=True)
    with open(ROOT / "build" / "site" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers of pytest wait, and find it built
        done = subprocess.run([ROOT / "tools" / "docs.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return HTML


def test_every_page_is_in_the_site(site):
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html")
             for path in (ROOT / "docs").rglob("*.md") if "site" not in path.parts]  # fmt: skip

    assert len(pages) > 60
    assert [page for page in pages if not (site / page).is_file()] == []


def test_nothing_is_fetched(site):
    fetched = {
        address
        for page in site.rglob("*.html")
        for found in LOADED.findall(page.read_text())
        for address in found
        if address.startswith(("http:", "https:", "//"))
    }
    styles = [path for path in site.rglob("*.css")
              if re.search(r"url\([\"']?(?:https?:)?//|@import", path.read_text())]  # fmt: skip

    assert not fetched and not styles


def test_the_reference_has_what_users_call(site):
    python = (site / "reference" / "python.html").read_text()
    core = (site / "reference" / "core.html").read_text()

    for name in ("cairn.open", "cairn.Store.save", "cairn.torch.Saver", "cairn.dcp.CairnWriter"):
        assert f'id="{name}"' in python, name
    for name in ("CheckpointStore", "StateDict", "SaveOptions", "ConnectGloo"):
        assert name in core, name


def test_the_search_knows_the_words_of_the_pages(site):
    index = (site / "searchindex.js").read_text()

    for word in ("compact", "reshard", "take_ov", "checkpointstor"):
        assert word in index, word  # stems of words
