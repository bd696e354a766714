"""Every block of code of the documentation runs, or states in the page why it cannot."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pages import DOCS, LIBRARIES, REASONS, ROOT, SETUP, blocks_of, pages, run_pages

# How many blocks are not run, by reason. A new one is a decision.
NOT_RUN = {
    "needs a GPU": 1,
    "needs a bucket": 3,
    "needs a scheduler": 2,
    "needs a second mount": 1,
}
# Tests that divide the pages, so that they can run at the same time.
SHARES = 2


def is_integration(page: Path) -> bool:
    return page.parent.name == "integrations"


def run_here() -> list[Path]:
    return [page for page in pages() if not is_integration(page)]


def programs() -> list[str]:
    return [
        page.relative_to(DOCS).as_posix()
        for page in run_here()
        if any(block.is_program() for block in blocks_of(page.read_text()))
    ]


@pytest.mark.long
@pytest.mark.timeout(1800)  # all programs of the documentation
@pytest.mark.parametrize("share", range(SHARES))
def test_all_pages_run(tmp_path, share):
    results = run_pages(tmp_path / "pages", programs()[share::SHARES])

    # tests/integrations/test_pages.py runs these, too, if the library is installed.
    skipped = [each for result in results for each in result["skipped"]]
    assert all(re.fullmatch(r"line \d+ needs \w+", each) for each in skipped), skipped


def test_there_are_many_programs():
    blocks = [
        block
        for name in programs()
        for block in blocks_of((DOCS / name).read_text())
        if block.reason in (None, "a synopsis")
    ]

    assert sum(block.language == "python" for block in blocks) >= 40
    assert sum(len(block.commands()) for block in blocks) >= 60


def test_the_first_block_about_conversion_runs_alone(tmp_path):
    first = blocks_of((DOCS / "conversion.md").read_text())[0]
    subprocess.run([sys.executable, "-c", first.code], cwd=tmp_path, check=True)


def test_what_is_not_run_states_a_known_reason():
    reasons = Counter(
        block.reason
        for page in run_here()
        for block in blocks_of(page.read_text())
        if block.reason not in (None, "a synopsis")
    )

    assert set(NOT_RUN) <= REASONS
    assert reasons == NOT_RUN


def test_every_mark_belongs_to_a_block():
    marks = {
        page: len(re.findall("<!-- (?:not run|runs with): ", page.read_text())) for page in pages()
    }
    blocks = {
        page: sum(bool(block.reason or block.libraries) for block in blocks_of(page.read_text()))
        for page in pages()
    }

    assert marks == blocks


def test_every_page_about_a_library_is_run():
    """tests/integrations/test_pages.py runs them, where the libraries are installed."""
    with_blocks = {
        page.stem
        for page in pages()
        if is_integration(page) and any(b.is_program() for b in blocks_of(page.read_text()))
    }

    assert with_blocks == LIBRARIES.keys()


def test_blocks_of_cpp_compile(tmp_path):
    sources = sorted(SETUP.glob("*.cc"))
    of_pages = {
        page.stem: [block.code for block in blocks_of(page.read_text()) if block.language == "cpp"]
        for page in run_here()
    }
    assert {name for name, code in of_pages.items() if code} == {path.stem for path in sources}
    generated = ROOT / "build" / "schema" / "generated"
    command = ["g++", "-std=c++23", "-fsyntax-only", f"-I{ROOT}", f"-I{generated}"]
    for path in sources:
        setup = path.read_text()
        assert len(re.findall("// BLOCK\n", setup)) == len(of_pages[path.stem])
        for block in of_pages[path.stem]:
            setup = setup.replace("// BLOCK\n", block, 1)
        source = tmp_path / path.name
        source.write_text(setup)
        done = subprocess.run([*command, source], capture_output=True, text=True)

        assert done.returncode == 0, done.stderr


def test_every_setup_belongs_to_a_page():
    setups = {path.relative_to(SETUP).with_suffix("") for path in SETUP.rglob("*.*")
              if "__pycache__" not in path.parts}  # fmt: skip
    known = {page.relative_to(DOCS).with_suffix("") for page in pages()}

    assert setups - known == {Path("common")}


def test_blocks_are_found_with_their_marks_and_commands():
    marked = "a\n\n<!-- not run: x -->\n```sh\nkv-dump a\n```\n"
    text = marked + "\n  ```\n  $ kv-admin b # c\n  ok\n  ```\n"
    library = "\n<!-- runs with: nothing_of_this_name, json -->\n```python\nx\n```\n"
    first, second, third = blocks_of(text + library)

    assert (first.language, first.reason, first.line) == ("sh", "x", 4)
    assert second.reason is None and second.commands() == ["kv-admin b # c"]
    assert third.is_program() and third.is_missing() == "nothing_of_this_name"
