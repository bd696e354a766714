"""The hex dumps of docs/format/ are the bytes of the store tests/golden/v3-example.

A dump is a code block. Its first line is the name of an object, and "decompressed" if it shows the
record of a root or a page, or "first block" or "footer" if it shows these of a table. Further lines
are an offset, bytes, and a comment after two spaces.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "format").glob("*.md"))
STORE = ROOT / "tests" / "golden" / "v3-example"

BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"^([A-Za-z]+(?:/[\w.-]+)*)(?:, (decompressed|first block|footer))?$")
LINE = re.compile(r"^([0-9a-f]{4}): ((?:[0-9a-f]{2,4} )*[0-9a-f]{2,4})( {2,}\S.*)?$")
TEXTS = ("CAIRN", "hint")  # objects of which a block shows the text
FRAME_HEADER_BYTES = 16
CHECKSUM_BYTES = 8


def decompress(stored: bytes) -> bytes:
    return subprocess.run(["zstd", "-dc"], input=stored, capture_output=True, check=True).stdout


def view(name: str, part: str | None) -> bytes:
    """The bytes that a dump with this title shows."""
    content = (STORE / name).read_bytes()
    if part == "decompressed":
        return decompress(content[FRAME_HEADER_BYTES:-CHECKSUM_BYTES])
    if part == "footer":
        return content[-53:]
    if part == "first block":  # a varint with the length before compression, then a zstd frame
        begin = next(i for i, byte in enumerate(content) if byte < 0x80) + 1
        frame_magic = bytes.fromhex("28b52ffd")
        assert content[begin : begin + 4] == frame_magic
        # zstd decompresses the frame, and reports that the bytes after it are not another one.
        command = ["zstd", "-dc"]
        return subprocess.run(command, input=content[begin:], capture_output=True).stdout
    return content


def grouped(data: bytes) -> str:
    return " ".join(data[i : i + 2].hex() for i in range(0, len(data), 2))


def dumps(text: str) -> Iterator[tuple[re.Match, bytes]]:
    """The lines of all dumps, with the bytes of the store that each must show."""
    for block in BLOCK.finditer(text):
        title = TITLE.match(block.group(1).split("\n", 1)[0])
        if not title or not (STORE / title.group(1)).is_file() or title.group(1) in TEXTS:
            continue
        content = view(*title.groups())
        for line in block.group(1).splitlines()[1:]:
            found = LINE.match(line)
            assert found, f"not a line of a dump: {line}"
            offset, length = int(found.group(1), 16), len(found.group(2).replace(" ", "")) // 2
            yield found, content[offset : offset + length]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dumps_are_the_bytes_of_the_example(page):
    wrong = [
        f"{line.group()}: the store has {grouped(data)}"
        for line, data in dumps(page.read_text())
        if bytes.fromhex(line.group(2)) != data
    ]

    assert not wrong, "\n".join(wrong)


def test_each_kind_of_object_has_a_dump():
    text = "".join(page.read_text() for page in PAGES)

    for kind in ("roots", "pages", "tables", "segments", "pending"):
        assert re.search(rf"^```\n{kind}/", text, re.MULTILINE), kind
    assert sum(1 for _ in dumps(text)) > 40


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_those_of_the_example(name):
    block = f"```\n{name}\n{(STORE / name).read_text()}```"

    assert block in (ROOT / "docs" / "format" / "store.md").read_text()
