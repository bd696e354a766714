"""Every measured figure of the documentation names its date, machine and command.

A section has figures if it contains a rate, such as 1.2 GB/s, or, in docs/performance/, a table
with a time. In other pages it has figures, too, if its text contains a time in ms or µs, a time
that something takes or took, or a factor, such as 3 times as fast. Settings, such as a timeout of
60 s, are not figures.

The section, the text before the first section of the page, or a section "Machine" then contain all
of:

- a date of the form 2026-11-25;
- the machine: its number of cores, or a link to the page that describes it;
- the command in backticks or in a block: a program of bench/, kv-bench, a test, or the word
  "unrecorded" if the program was not kept.

Outside of docs/performance/, a link to one of its pages is enough, because that page contains them.
"""

import re
from pathlib import Path

import pytest
from pages import DOCS, pages

RATE = re.compile(r"\d ?(?:[kMGT]i?B/s|core-seconds)")
TIME = re.compile(r"^\|.*\d(?:\.\d+)? ?(?:µs|ms|s)\b.*\|$", re.MULTILINE)
AMOUNT = r"(?:up to |about |only )?\d[\d.,]* ?"
PROSE = re.compile(
    rf"\d ?(?:µs|ms)\b|\b(?:takes|took|costs)\s(?:\w+\s)?{AMOUNT}(?:s|min)\b"
    r"|\d\stimes\s(?:as\s(?:fast|slow)|fewer|faster|slower)\b"
)
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
DATE = re.compile(r"20\d\d-\d\d-\d\d")
MACHINE = re.compile(r"\bcores\b|README\.md|performance/\w+\.md")
COMMAND = re.compile(
    r"bench/\w+\.py|kv-bench |cairn_\w+ |tests/\w+/\w+|_test\b|fuzz|\bunrecorded\b|^\$ kv-",
    re.MULTILINE,
)


PERFORMANCE = re.compile(r"\]\((?:\.\./)?(?:docs/)?performance/[\w-]+\.md")


def sections_of(text: str) -> list[str]:
    return re.split(r"^## ", text, flags=re.MULTILINE)


def has_figures(page: Path, section: str) -> bool:
    in_performance = page.parent.name == "performance"
    if RATE.search(section):
        return True
    return bool(TIME.search(section) if in_performance else PROSE.search(TABLE.sub("", section)))


def missing(page: Path, section: str, introduction: str) -> list[str]:
    text = introduction + section
    if page.parent.name != "performance" and PERFORMANCE.search(text):
        return []
    wanted = {"date": DATE, "machine": MACHINE, "command": COMMAND}
    return [name for name, pattern in wanted.items() if not pattern.search(text)]


def problems_of(page: Path, text: str) -> list[str]:
    introduction, *sections = sections_of(text)
    before = introduction + "".join(each for each in sections if each.startswith("Machine"))
    return [
        f"{page}: {section.splitlines()[0]}: no {', '.join(lacks)}"
        for section in (introduction, *sections)
        if has_figures(page, section)
        and (lacks := missing(page, section, "" if section is introduction else before))
    ]


def test_every_figure_names_its_date_machine_and_command():
    problems = [
        problem
        for page in pages()
        if page.parent.name != "adr"  # records of decisions are not rewritten
        for problem in problems_of(page.relative_to(DOCS), page.read_text())
    ]

    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("# A\n\nIt runs at 2 GB/s.\n", 1),
        ("# A\n\nMeasured on 2026-11-25 on 2 cores by `bench/a.py`: 2 GB/s.\n", 0),
        ("# A\n\n2026-11-25, 2 cores, `bench/a.py`\n\n## B\n\n2 GB/s\n", 0),
        ("# A\n\n## B\n\n2026-11-25, 2 cores, `bench/a.py`\n\n## C\n\n2 GB/s\n", 1),
        ("# A\n\nA lease is valid for 60 s.\n", 0),
        ("# A\n\nA save takes 3 s.\n", 1),
        ("# A\n\nIt is ready after 20 ms.\n", 1),
        ("# A\n\nIt is 3 times as fast ([x](performance/x.md)).\n", 0),
    ],
)
def test_the_check_finds_figures_without_their_origin(text, wrong):
    assert len(problems_of(Path("a.md"), text)) == wrong
