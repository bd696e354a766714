"""Links of the pages to folders of the repository, which have no page in the site."""

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def replace_folders(text: str, folder: Path) -> str:
    """Replaces links to folders by their text. Links to missing files remain, and are errors."""

    def replace(match: re.Match) -> str:
        return match[1] if (folder / match[2]).is_dir() else match[0]

    return LINK.sub(replace, text)


def read(app, name: str, source: list[str]) -> None:
    source[0] = replace_folders(source[0], Path(app.env.doc2path(name)).parent)


def setup(app) -> dict:
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
