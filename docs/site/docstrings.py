"""Docstrings as reStructuredText: code blocks, sections with a remark, and links to pages."""

import re

REMARK = re.compile(r"^( *)(Raises\b[^:]+):$")
PAGE = re.compile(r"(?<![\w/`])docs/([\w/-]+?)(?:\.md)?(?=[\s),.;:]|$)")


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def code_blocks(lines: list[str]) -> list[str]:
    """Puts a directive before each indented block that an empty line separates from its text."""
    result: list[str] = []
    indent, inside = 0, False  # of the last line of text; whether this line is in a block
    for number, line in enumerate(lines):
        if line.strip():
            inside = inside and indent_of(line) > indent
            after_empty = number > 0 and not lines[number - 1].strip()
            after_colons = any(text.endswith("::") for text in lines[max(0, number - 2) : number])
            if not inside and after_empty and indent_of(line) >= indent + 4:
                result += [] if after_colons else [" " * indent + ".. code-block:: python", ""]
                inside = True
            elif not inside:
                indent = indent_of(line)
        result.append(line)
    return result


def remarks(lines: list[str]) -> list[str]:
    """Makes lists of sections such as "Raises, when the block is entered:"."""
    result: list[str] = []
    section: int | None = None  # indent of its title
    for line in lines:
        title = REMARK.match(line)
        if title:
            section = len(title[1])
            result += [f"{title[1]}{title[2]}:", ""]
        elif section is not None and line.strip() and indent_of(line) > section:
            item = indent_of(line) == section + 4
            result.append(" " * section + ("* " if item else "  ") + line.strip())
        else:
            section = None if line.strip() else section
            result.append(line)
    return result


def process(app, what, name, object_, options, lines: list[str]) -> None:
    if what == "module":  # Sphinx removes the indent of a code block that is all but the first line
        lines[:] = [*object_.__doc__.split("\n"), ""]
    lines[:] = [PAGE.sub(r":doc:`/\1`", line) for line in remarks(code_blocks(lines))]


def setup(app) -> dict:
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
