"""The reference of the C++ API: what Doxygen finds in the public headers, as Markdown.

A page contains the line `<!-- headers: FOLDER -->`, which is replaced by the headers of FOLDER. The
comments are plain text, so blocks and `<names>` in them are marked for Doxygen first.
"""

import re
import subprocess
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kv", "core")
LINE = re.compile(r"^<!-- headers: (\S+) -->$", re.MULTILINE)
ANNOTATIONS = ("GUARDED_BY", "CAPABILITY", "ACQUIRE", "RELEASE", "REQUIRES", "ACQUIRE_SHARED",
               "RELEASE_SHARED")  # fmt: skip
DOXYFILE = """
INPUT = {headers}
OUTPUT_DIRECTORY = {output}
STRIP_FROM_PATH = {headers}
INCLUDE_PATH = {headers}
FILE_PATTERNS = *.h
RECURSIVE = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
HAVE_DOT = NO
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = {predefined}
WARN_IF_UNDOCUMENTED = NO
WARN_AS_ERROR = FAIL_ON_WARNINGS
QUIET = YES
"""


def public_headers() -> list[Path]:
    return sorted(
        path.relative_to(ROOT)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.h")
        if "internal" not in path.parts
    )


def escape(text: str) -> str:
    """Escapes what Doxygen would take for tags and commands, except in code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"[@<>\\#%]", r"\\\g<0>", piece)
        for piece in pieces
    )


def marked(text: str) -> str:
    """The text of a header in which Doxygen recognizes the comment of the file and its blocks."""
    lines = []
    in_block = in_list = False
    for line in text.replace("#pragma once\n///", "#pragma once\n/// @file\n///", 1).split("\n"):
        found = re.match(r"^(\s*///<?)( *)(.*)$", line)
        prefix, space, body = found.groups() if found else ("", "", "")
        indented = bool(found) and len(space) >= 3 and not prefix.endswith("<")
        is_item = bool(re.match(r"(?:[-*]|\d+\.) ", body))
        in_list = bool(body) and bool(found) and (is_item or (in_list and indented))
        block = indented and (in_block or not in_list) and bool(body)
        if block != in_block:
            lines.append(prefix or "///")
        in_block = block
        if block:
            line = f"{prefix}     {space}{body}"
        elif found and body != "@file":
            line = prefix + space + escape(body)
        lines.append(line)
    return "\n".join(lines)


def run_doxygen(build: Path) -> Path:
    """Writes what Doxygen knows of all public headers, as XML. A warning is an error."""
    for header in public_headers():
        target = build / "headers" / header
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(marked((ROOT / header).read_text()))
    predefined = " ".join(f'"CAIRN_{name}(...)="' for name in ANNOTATIONS)
    predefined += ' "CAIRN_SCOPED_CAPABILITY="'
    settings = DOXYFILE.format(headers=build / "headers", output=build, predefined=predefined)
    finished = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True)
    if finished.returncode != 0 or finished.stderr:
        raise ExtensionError(f"doxygen: {finished.stderr}")
    return build / "xml"


def inline(node: ElementTree.Element) -> str:
    """The text of a paragraph as Markdown. Words of code keep their backticks."""
    text = re.sub(r"([*_<\[\]])", r"\\\1", node.text or "")
    for child in node:
        if child.tag == "computeroutput":
            text += f"`{''.join(child.itertext())}`"
        elif child.tag == "sp":
            text += " "
        elif child.tag not in BLOCKS:
            text += inline(child)
        text += re.sub(r"([*_<\[\]])", r"\\\1", child.tail or "")
    return text


def block(node: ElementTree.Element) -> str:
    """A description, or a part of one, as Markdown."""
    if node.tag in ("verbatim", "programlisting"):
        lines = "".join(node.itertext()).strip("\n").split("\n")
        code = textwrap.dedent("\n".join(line.rstrip() for line in lines))
        language = "cpp" if re.search(r"[;)]$|;  +//", code, re.MULTILINE) else "text"
        return f"```{language}\n" + re.sub(r"\n{3,}", "\n\n", code) + "\n```\n\n"
    if node.tag in ("itemizedlist", "orderedlist"):
        mark = "-" if node.tag == "itemizedlist" else "1."
        items = [" ".join(block(item).split()) for item in node]
        return "".join(f"{mark} {item}\n" for item in items) + "\n"
    if node.tag != "para":
        return "".join(block(child) for child in node)
    text = " ".join(inline(node).split())
    return (text + "\n\n" if text else "") + "".join(
        block(child) for child in node if child.tag in BLOCKS
    )


BLOCKS = {"verbatim", "programlisting", "itemizedlist", "orderedlist"}


def text_of(node: ElementTree.Element, name: str) -> str:
    child = node.find(name)
    return "" if child is None else " ".join("".join(child.itertext()).split())


def description(node: ElementTree.Element) -> str:
    return "".join(block(child) for name in ("briefdescription", "detaileddescription")
                   for child in node.findall(name))  # fmt: skip


def signature(member: ElementTree.Element) -> str:
    """The declaration of a member, without the namespaces of its name."""
    if member.get("kind") == "enum":
        values = ", ".join(text_of(value, "name") for value in member.findall("enumvalue"))
        return f"enum class {text_of(member, 'name')} {{ {values} }};"
    if member.get("kind") == "define":
        names = ", ".join(text_of(each, "defname") for each in member.findall("param"))
        return f"#define {text_of(member, 'name')}" + (f"({names})" if names else "")
    name, qualified = text_of(member, "name"), text_of(member, "qualifiedname")
    parameters = [text_of(each, "type") + " " + text_of(each, "declname")
                  for each in member.findall("templateparamlist/param")]  # fmt: skip
    template = f"template <{', '.join(each.strip() for each in parameters)}> " if parameters else ""
    declared = text_of(member, "definition").replace(qualified, name)
    declared += text_of(member, "argsstring")
    initializer = text_of(member, "initializer")
    return spaced(f"{template}{declared}{initializer and ' ' + initializer};")


def spaced(declaration: str) -> str:
    """The declaration with the spaces of our style instead of Doxygen's."""
    declaration = re.sub(r"(?<=\w)< ", "<", declaration).replace(" >", ">")
    declaration = re.sub(r" ([&*]+)(?=\w)", r"\1 ", declaration)
    return re.sub(r"(?<=\w)=(?=[\w{\"])", " = ", declaration)


class Headers:
    """The headers of a folder as Markdown."""

    def __init__(self, xml: Path) -> None:
        self._xml = xml
        self._files = {}
        for path in xml.glob("*_8h.xml"):
            compound = ElementTree.parse(path).getroot().find("compounddef")
            self._files[compound.find("location").get("file")] = compound

    def page(self, folder: str) -> str:
        """The headers that are in this folder itself."""
        names = [str(path) for path in public_headers() if str(path.parent) == folder]
        if not names:
            raise ExtensionError(f"{folder} has no public headers")
        return "\n".join(self._header(name) for name in names)

    def _header(self, name: str) -> str:
        file = self._files[name]
        text = f"### `{name}`\n\n" + description(file)
        for inner in file.findall("innerclass"):
            if inner.get("prot") == "public" and "::internal::" not in inner.text:
                text += self._class(inner.get("refid"))
        return text + self._members(file)

    def _class(self, reference: str) -> str:
        compound = ElementTree.parse(self._xml / f"{reference}.xml").getroot().find("compounddef")
        name = re.sub(r"^cairn::(?:kv::|core::)?", "", text_of(compound, "compoundname"))
        text = f"#### {compound.get('kind')} `{name}`\n\n" + description(compound)
        return text + self._members(compound)

    def _members(self, compound: ElementTree.Element) -> str:
        text, plain = "", []
        for member in compound.findall("sectiondef/memberdef"):
            if member.get("prot") != "public" or "internal::" in text_of(member, "qualifiedname"):
                continue
            told = description(member) + "".join(
                f"- `{text_of(value, 'name')}`: {' '.join(description(value).split())}\n"
                for value in member.findall("enumvalue") if description(value).strip()
            )  # fmt: skip
            if told.strip():
                text += f"```cpp\n{signature(member)}\n```\n\n{told}\n"
            else:
                plain.append(signature(member))
        return text + ("```cpp\n" + "\n".join(plain) + "\n```\n\n" if plain else "")


def read(app, name: str, source: list[str]) -> None:
    if not LINE.search(source[0]):
        return
    if not hasattr(app, "cairn_headers"):
        app.cairn_headers = Headers(run_doxygen(Path(app.outdir).parent / "doxygen"))
    source[0] = LINE.sub(lambda match: app.cairn_headers.page(match[1]), source[0])
    for header in public_headers():
        app.env.note_dependency(str(ROOT / header))


def setup(app) -> dict:
    app.connect("source-read", read)
    return {"parallel_read_safe": False}
