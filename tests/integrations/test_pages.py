"""The pages of docs/integrations run as they are written, with the real libraries.

tests/docs/pages.py describes how, and tests/docs/setup/integrations/ has what the pages leave out.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))
from pages import DOCS, LIBRARIES, blocks_of, is_installed, run_pages

# Pages about other topics that have a block with a library.
OTHERS = {"conversion.md": ("transformers",), "torch-training.md": ("torchdata",)}
PAGES = {f"integrations/{page}.md": libraries for page, libraries in LIBRARIES.items()} | OTHERS


@pytest.mark.timeout(3600)  # DeepSpeed compiles an extension, and Ray starts its processes
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    for library in PAGES[page]:
        if not is_installed(library):
            pytest.skip(f"{library} is not installed (tools/setup.sh --integrations)")
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))

    [result] = run_pages(tmp_path / "pages", [page])

    blocks = [block for block in blocks_of((DOCS / page).read_text()) if block.reason is None]
    assert result["blocks"] == sum(block.language == "python" for block in blocks) > 0
    assert result["skipped"] == []
