"""Every block of code of the documentation runs, or states in the page why it cannot."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pages import DOCS, REASONS, ROOT, SETUP, blocks_of, pages

HERE = Path(__file__).resolve().parent
# How many blocks are not run, by reason. A new one is a decision.
NOT_RUN = {
    "a synopsis": 2,
    "needs a GPU": 2,
    "needs a bucket": 3,
    "needs a damaged store": 1,
    "needs a second mount": 1,
    "needs torchdata": 1,
    "needs transformers": 1,
    "needs wandb and MLflow": 1,
    "runs until it is stopped": 2,
}
# Pages about libraries of others, which the usual tests do not install, and what runs their calls.
# test_hf_pages.py and test_torchao.py run the blocks of the page.
RUN_BY_INTEGRATIONS = {
    "deepspeed": "test_deepspeed.py",
    "huggingface": "test_hf_pages.py",
    "jax": "test_jax.py",
    "lightning": "test_lightning.py",
    "megatron": "test_megatron.py",
    "ray": "test_ray.py",
    "torchao": "test_torchao.py",
    "torchtitan": "test_torchtitan.py",
    "trainer": "test_hf_pages.py",
}


def is_integration(page: Path) -> bool:
    return page.parent.name == "integrations"


def run_here() -> list[Path]:
    return [page for page in pages() if not is_integration(page)]


def test_all_pages_run(tmp_path):
    names = [
        page.relative_to(DOCS).as_posix()
        for page in run_here()
        if any(block.language == "python" or block.commands()
               for block in blocks_of(page.read_text()))
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "run_pages.py", tmp_path / "pages", *names],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{ROOT / 'build' / 'python'}"},
        capture_output=True,
        text=True,
    )

    results = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [f"{result['page']}: {result['error']}" for result in results if result["error"]]
    assert not failed, "\n".join(failed)
    assert [result["page"] for result in results] == names, done.stderr
    assert sum(result["blocks"] for result in results) >= 30, "the list of blocks looks wrong"
    assert sum(result["commands"] for result in results) >= 50, "the list of commands looks wrong"


def test_what_is_not_run_states_a_known_reason():
    reasons = Counter(
        block.reason
        for page in run_here()
        for block in blocks_of(page.read_text())
        if block.reason is not None
    )

    assert set(NOT_RUN) <= REASONS
    assert reasons == NOT_RUN


def test_every_mark_belongs_to_a_block():
    marks = {page: page.read_text().count("<!-- not run: ") for page in pages()}
    blocks = {
        page: sum(block.reason is not None for block in blocks_of(page.read_text()))
        for page in pages()
    }

    assert marks == blocks


@pytest.mark.parametrize(
    "page", [page for page in pages() if is_integration(page)], ids=lambda page: page.stem
)
def test_blocks_of_integrations_are_programs_and_have_a_test(page):
    blocks = [block for block in blocks_of(page.read_text()) if block.language == "python"]
    if not blocks:
        return
    for block in blocks:
        compile(block.code, str(page), "exec")

    assert (ROOT / "tests" / "integrations" / RUN_BY_INTEGRATIONS[page.stem]).is_file()


def test_blocks_of_cpp_compile(tmp_path):
    page = DOCS / "communicators.md"
    others = [each for each in run_here() if each != page]
    assert not any(b.language == "cpp" for other in others for b in blocks_of(other.read_text()))
    code = [block.code for block in blocks_of(page.read_text()) if block.language == "cpp"]
    setup = (SETUP / "communicators.cc").read_text()
    assert setup.count("// BLOCK\n") == len(code) == 2
    for block in code:
        setup = setup.replace("// BLOCK\n", block, 1)
    source = tmp_path / "page.cc"
    source.write_text(setup)

    generated = ROOT / "build" / "schema" / "generated"
    command = ["g++", "-std=c++23", "-fsyntax-only", f"-I{ROOT}", f"-I{generated}", source]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_every_setup_belongs_to_a_page():
    setups = {path.relative_to(SETUP).with_suffix("") for path in SETUP.rglob("*.*")
              if "__pycache__" not in path.parts}  # fmt: skip
    known = {page.relative_to(DOCS).with_suffix("") for page in pages()}

    assert setups - known == {Path("common")}


def test_blocks_are_found_with_their_marks_and_commands():
    marked = "a\n\n<!-- not run: x -->\n```sh\nkv-dump a\n```\n"
    text = marked + "\n  ```\n  $ kv-admin b # c\n  ok\n  ```\n"
    first, second = blocks_of(text)

    assert (first.language, first.reason, first.line) == ("sh", "x", 4)
    assert second.reason is None and second.commands() == ["kv-admin b # c"]
