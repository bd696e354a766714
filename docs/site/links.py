"""Links of the pages: to folders of the repository, which have no page in the site, and to files.

In the repository, a link to a page has the name of the file as its text. In the site, it has the
title of the page.
"""

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def replace_folders(text: str, folder: Path) -> str:
    """Replaces links to folders by their text. Links to missing files remain, and are errors."""

    def replace(match: re.Match) -> str:
        return match[1] if (folder / match[2]).is_dir() else match[0]

    return LINK.sub(replace, text)


NAME = re.compile(r"(?<!!)\[[\w./-]+\.md\]\(([^):\s]+\.md(?:#[^)]*)?)\)")


def replace_names(text: str) -> str:
    """Links without a text get the title of their target."""
    return NAME.sub(r"[](\1)", text)


def read(app, name: str, source: list[str]) -> None:
    source[0] = replace_names(replace_folders(source[0], Path(app.env.doc2path(name)).parent))


def setup(app) -> dict:
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
