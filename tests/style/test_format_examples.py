"""The hex dumps of docs/format/ are the bytes of the store tests/golden/v3-example.

A dump is a code block. Its first line is the name of an object, and "decompressed" if it shows the
record of a root or a page, or "first block" or "footer" if it shows these of a table. Further lines
are an offset, bytes, and a comment after two spaces. tests/golden/regenerate.sh, which creates the
store again, replaces the bytes with

    python tests/style/test_format_examples.py --write FORMER

where FORMER is the store that the pages show: names are those of the objects that were created at
the same place in the order (v3-example.names), a line moves to the new offset of its bytes if they
did not change, and lengths in frames are corrected. All other comments and offsets are kept; it
prints the lines whose bytes changed, so that a person reads them.
"""

import re
import subprocess
import sys
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


def view(name: str, part: str | None, store: Path = STORE) -> bytes:
    """The bytes that a dump with this title shows."""
    content = (store / name).read_bytes()
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


def text_block(name: str, store: Path) -> str:
    return f"```\n{name}\n{(store / name).read_text()}```"


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_those_of_the_example(name):
    assert text_block(name, STORE) in (ROOT / "docs" / "format" / "store.md").read_text()


def names(store: Path) -> list[str]:
    """The objects of a store in the order of their creation, those of one folder together."""
    listed = store.with_suffix(".names").read_text().split()
    return sorted(listed, key=lambda name: name.split("/")[0])


def rename(text: str, former: Path) -> str:
    """Replaces names and ids of objects, the latter also as decimal numbers."""
    for old, new in zip(names(former), names(STORE), strict=True):
        text = text.replace(old, new)
        for old_id, new_id in zip(
            *(re.findall("[0-9a-f]{16,}", name) for name in (old, new)), strict=True
        ):
            text = text.replace(old_id, new_id).replace(str(int(old_id, 16)), str(int(new_id, 16)))
            # In records, an id of 96 bits is in two parts.
            for part in (slice(16), slice(16, None)):
                if old_id[part]:
                    text = text.replace(old_id[part], new_id[part])
                    text = text.replace(str(int(old_id[part], 16)), str(int(new_id[part], 16)))
    return text


def moved(offset: int, shown: bytes, before: bytes, after: bytes) -> int:
    """The offset of the bytes that a line of a dump of `before` shows, in `after`."""
    if offset + len(shown) == len(before):
        return len(after) - len(shown)
    is_same = len(shown) < 4 or after[offset : offset + len(shown)] == shown
    return offset if is_same or after.count(shown) != 1 else after.index(shown)


def write_block(block: str, former: Path) -> str:
    """A dump of the former store, as a dump of this one."""
    title = TITLE.match(block.split("\n", 1)[0])
    if not title or not (former / title.group(1)).is_file() or title.group(1) in TEXTS:
        return rename(block, former)
    before, new_title = view(*title.groups(), former), TITLE.match(rename(title.group(), former))
    after = view(*new_title.groups())
    lines = [new_title.group()]
    for line in block.splitlines()[1:]:
        found = LINE.match(line)
        shown = bytes.fromhex(found.group(2))
        offset = moved(int(found.group(1), 16), shown, before, after)
        data = after[offset : offset + len(shown)]
        comment = rename(found.group(3) or "", former)
        if re.match(rb"CN[A-Z]{2}\x01", data):
            lengths = tuple(int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
            comment = re.sub(
                r"\d+ bytes, compressed to \d+", "%d bytes, compressed to %d" % lengths, comment
            )
        comment = re.sub(
            "until 0x[0-9a-f]{4}", f"until 0x{len(after) - CHECKSUM_BYTES:04x}", comment
        )
        lines.append(f"{offset:04x}: {grouped(data)}{comment}")
        if data != shown or offset != int(found.group(1), 16):
            print(f"{new_title.group()}: {line}\n    is now {lines[-1]}")
    return "\n".join(lines) + "\n"


def write(former: Path) -> None:
    for page in PAGES:
        # Every second piece is inside of a block.
        pieces = re.split(r"(^```\n.*?^```$)", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for i, piece in enumerate(pieces):
            is_block = i % 2 == 1
            texts = [name for name in TEXTS if piece == text_block(name, former)]
            if texts:
                pieces[i] = text_block(texts[0], STORE)
            elif is_block:
                pieces[i] = f"```\n{write_block(piece[4:-3], former)}```"
            else:
                pieces[i] = rename(piece, former)
        page.write_text("".join(pieces))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--write":
        sys.exit(__doc__)
    write(Path(sys.argv[2]))
