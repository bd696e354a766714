"""Plain English in comments, docstrings, messages, scripts and documents.

Each rule is a regular expression for wording that readers have to read twice, and the wording to
use instead. Rules must be precise: a rule that rejects good sentences is worse than none. To list
what the rules find, in all of the tree or in some folders:

    python tests/style/test_language.py [PATH...]
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THIS = "tests/style/test_language.py"  # contains wrong wording as samples

# What is checked: everything that people write, except for files that are not clean yet.
CHECKED = ("README.md", "CHANGELOG.md", "bench", "cmake", "core", "cuda", "docs", "examples", "kv",
           "python", "schema", "tests", "tools")  # fmt: skip
NOT_CLEAN = {
    "core/interop/model_directory/model_layout.cc",
    "core/interop/safetensors/safetensors_writer.h",
    "core/upkeep/repair.h",
    "core/upkeep/scrub.h",
    "tests/install/consumer/consumer.cc",
    "tests/python/test_convert.py",
    "tests/simulation/job.h",
    "tests/simulation/participant.h",
    "tests/simulation/schedule.cc",
    "tests/support/fake_s3.h",
    "tools/admin/storage_checks.h",
    "tools/bench/fio.h",
    "tools/bench/main.cc",
    "tools/common/completion.cc",
    "tools/common/completion.h",
    "tools/dump/live_report.cc",
}
# (path, matched text): why this wording is right in this place.
ALLOWED: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Rule:
    wrong: str  # regular expression, case-insensitive; ^ is the start of a comment or string
    instead: str
    samples: tuple[str, ...]  # must be found
    fine: tuple[str, ...] = ()  # must not be found

    def search(self, text: str) -> Iterator[re.Match]:
        return re.finditer(self.wrong, text, re.IGNORECASE)


# Nouns, without those that are verbs too (records a step, digests a page, names a peer).
COUNTED = (r"(?:bytes?|bits?|elements?|rows?|columns?|lines?|entr(?:y|ies)|strides?|offsets?|file"
           r"|threads?|process|record|figures?|instructions?|core-seconds|seconds?|[mnµu]?s"
           r"|[KMG]i?B|digest|chunks?|object|times|panels?|bars?|tokens?|manifests?|one|number"
           r"|contents?|range|pieces?|warp|shard|results?|length|leaf|value)")
EACH = (r"(?:dimension|rank|page|chunk|step|tensor|key|segment|file|element|row|box|node|process"
        r"|record|leaf|unit|run|peer|device|GPU|GB|measurement|save|load|member|block|queue|job"
        r"|module|shard|world|case|attempt|lane|thread|month|day|group)")
VERB = (r" (?:has|have|needs|holds|contains|takes|is|are|uses|wrote|writes|reads?|may|can|must|will"
        r"|belongs|covers|refers|of|that|which|in|on|to)\b")

RULES = (
    Rule(rf"\b{COUNTED} an? {EACH}\b(?!{VERB})", "per: one stride per dimension",
         ("a row a step", "8 bytes a page", "0.35 s of CPU and 5 core-seconds a GB"),
         ("the bytes a chunk needs", "writes bytes as a chunk", "one row per step",
          "it digests a page", "an error that names a peer")),
    Rule(r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|later\b"
         r"|earlier\b|larger\b|smaller\b|worse\b|better\b|slower\b|faster\b|other\b)[a-z]+",
         "is not a", ("a dict that is no mapping", "values that are no tensors"),
         ("there is no GPU", "it is no longer used", "this is not a tensor")),
    Rule(r"\b(?:has|have) not got\b", "does not have", ("it has not got one",)),
    Rule(r"\banew\b", "again", ("opens it anew",), ("renewed",)),
    Rule(r"\bas ever\b(?! (?:in|be))", "as before, as usual", ("staged as ever.",)),
    Rule(r"(?<!as )\bof now\b", "current", ("the step of now",), ("as of now",)),
    Rule(r"\bfor ever\b", "forever, indefinitely", ("waits for ever",)),
    Rule(r"\bin case that\b", "if", ("in case that it fails",)),
    Rule(r"[;,] else (?!if\b)", "otherwise", ("the first, else the last", "0 if absent; else 1"),
         ("or else the process ends",)),
    Rule(r"\bheld against\b|\bholds? (?:it|them|all|what|each) against\b",
         "compared with, checked against", ("is held against a limit",)),
    Rule(r"\bapart from\b", "except for", ("apart from its head",)),
    Rule(r"\balike\b", "the same, in common, equally", ("records that ranks have alike",)),
    Rule(r"\bat large\b", "in general, arbitrary", ("the tree at large",)),
    Rule(r"(?<![\w-])beside(?![\w-])", "next to, in addition to, during, compared with",
         ("the file beside it",), ("besides", "0003-readers-beside-a-writer.md")),
    Rule(r"\bmeanwhile\b", "in the meantime, concurrently", ("it was deleted meanwhile",)),
    Rule(r"\bwith(?:out)? a word\b|\brank \d's word\b", "with a message, silently, a decision",
         ("left out with a word",), ("a word of 64 bits",)),
    Rule(r"\bfalls? to (?:it|them|this|a|an|the|each|rank|one)\b", "is assigned to, belongs to",
         ("chunks that fall to it",)),
    Rule(r"\bgo(?:es)? over (?:NCCL|Gloo|TCP|it|them|the)\b", "is sent over, uses",
         ("tensors go over NCCL",)),
    Rule(r"\bgo(?:es)? on\b|\bgoing on\b", "continue", ("the training goes on",), ("goes only",)),
    Rule(r"\bmend(?:s|ed|ing)?\b", "repair, fix", ("and mended by the next open",), ("amended",)),
    Rule(r"\blet(?:s|ting)? go of\b", "release", ("lets go of the buffer",)),
    Rule(r"(?<![\w-])(?:lies|lie|lay)(?![\w-])", "is, is stored", ("where the bytes lie",),
         ("relies", "layout")),
    Rule(r"\bstands? (?:in|on|at|behind|beside|still|before|where|there)\b(?! for\b)",
         "is, is in, contains", ("the root stands in the record",),
         ("stands for", "stands in for")),
    Rule(r"\b(?:says?|tells?|told) (?:whether|which|what|how|where|who|why|so|nothing)\b",
         "state, report, return, determine", ("the page says how", "it tells which chunk"),
         ("how to say it",)),
    Rule(r"\bbrings\b", "copies, returns, provides", ("a lane brings the bytes",)),
    Rule(r"\bcomes? (?:back|along|again|whole|at once|by itself)\b", "is returned, is loaded",
         ("a tuple comes back a tuple",)),
    Rule(r"\bbehind (?:the training|(?:its|their|our|the caller's) backs?|it\b|them\b|one another"
         r"|another\b)", "in the background, after",
         ("written behind the training", "one behind another"), ("behind an interface",)),
    Rule(r"\bdrawn (?:from a seed|with\b|when\b|at random)"
         r"|\b(?:digits|seeds?|ids?|positions) (?:is |are )?drawn\b", "generated",
         ("digits drawn when it opens",), ("a chart is drawn",)),
    Rule(r"\bmanieth\b", "every N-th", ("every how manieth key",)),
    Rule(r"\bwithout a rest\b", "without a remainder, without an unaligned tail",
         ("read without a rest",)),
    Rule(r"\bof several ranks\b|^several ranks:|\bmany ranks:", "in a multi-rank store",
         ("Of several ranks each has one",), ("is used by several ranks",)),
    Rule(r"(?:^|[.;:,(] |\b(?:for|by) )who(?:ever)? (?!is\b|are\b)[a-z]+s\b",
         "callers that, code that", ("who takes it must free it", "by who calls it"),
         ("the ranks who", "a list of who wrote what")),
    Rule(r"\berrors:? as\b|\bas given, and\b|^the same (?:for|as|in|with)\b",
         "the contract itself", ("Errors as Load.", "The same for arrays."),
         ("returns the same for both",)),
    Rule(r"^(?-i:Of) (?:the|an?|all|its|this|these|each|every|one) [^,.;:]{1,60}(?:\.|$)",
         "a sentence: Length of the chunk.", ("Of the chunk.",), ("Of the two, one is a copy.",)),
    Rule(r"\bsome \d", "about", ("some 20 ms",), ("some of 20",)),
    Rule(r"\bof (?:its|their|our|your|one's) own\b"
         r"(?: (?:and|that|which|with|for|in|below)\b|(?! \w))", "separate, own, itself",
         ("a file of its own", "a store of its own for it"),
         ("its own file", "the digests of its own pages")),
    Rule(r"\bgiv(?:es?|en|ing) back\b", "return, release", ("gives back the memory",)),
    Rule(r"\b(?:it|that|which) is there\b|\bto be had\b", "exists, is available",
         ("if it is there", "the index was not to be had"), ("there is one",)),
    Rule(r"\bmakes? (?:an?|the|new) (?:store|file|index|directory|folder|tensors?|threads?|segment"
         r"|communicator)\b(?!'s)", "create", ("makes a store",), ("makes a copy",)),
    Rule(r"\bcop(?:y|ies|ied) (?:\w+ ){0,2}aside\b", "copy", ("copied aside",)),
    Rule(r"\bhand(?:s|ed)? (?:in|on)\b(?! hand)", "pass, submit",
         ("each hands in what it has",), ("by hand",)),
    Rule(r"\bsees? to it\b", "ensure", ("the caller sees to it",)),
    Rule(r"\bway of the bytes\b", "data path", ("The way of the bytes",)),
)


@dataclass(frozen=True)
class Passage:
    """Text of one comment, string or paragraph, with the line of each of its lines."""

    lines: tuple[tuple[int, str], ...]

    def findings(self) -> Iterator[tuple[int, Rule, str]]:
        text, starts = "", []
        for number, line in self.lines:
            text += " " if text else ""
            starts.append((len(text), number))
            text += line
        for rule in RULES:
            for match in rule.search(text):
                line = max((s for s in starts if s[0] <= match.start()), default=(0, 0))[1]
                yield line, rule, match.group().strip()


def paragraphs(lines: list[tuple[int, str]]) -> Iterator[Passage]:
    """Splits lines where a line is empty."""
    found: list[tuple[int, str]] = []
    for number, line in [*lines, (0, "")]:
        if line.strip():
            found.append((number, line.strip()))
        elif found:
            yield Passage(tuple(found))
            found = []


def joined(pieces: list[tuple[int, str]]) -> Iterator[Passage]:
    """Joins pieces (comments, or strings) that are on consecutive lines."""
    lines: list[tuple[int, str]] = []
    for number, text in pieces:
        if lines and number > lines[-1][0] + 1:
            yield from paragraphs(lines)
            lines = []
        lines += [(number + i, line) for i, line in enumerate(text.split("\n"))]
    yield from paragraphs(lines)


CPP_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL
)


def cpp_passages(text: str) -> Iterator[Passage]:
    comments, strings, end = [], [], 0
    for match in CPP_TOKEN.finditer(text):
        line, token = text.count("\n", 0, match.start()) + 1, match.group()
        alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        if token.startswith("//"):
            # Empty lines separate a comment after code from those above and below.
            around = [] if alone else [(line, "")]
            comments += [*around, (line, token.lstrip("/")), *around]
        elif token.startswith("/*"):
            comments.append((line, token.strip("/*")))
        elif not token.startswith("'"):
            # Only whitespace between two strings makes them one.
            strings += [(line, "")] if text[end : match.start()].strip() else []
            strings.append((line, token.strip('R"()')))
            end = match.end()
    yield from joined(comments)
    yield from joined(strings)


def python_passages(text: str) -> Iterator[Passage]:
    comments, strings, adjacent = [], [], False
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.append((token.start[0], token.string.lstrip("#! ")))
        elif token.type in (tokenize.STRING, middle):
            inner = re.sub(r"^[rbfuRBFU]*(?=[\"'])", "", token.string).strip("\"'")
            strings += [(token.start[0], inner)] if adjacent else [(0, ""), (token.start[0], inner)]
        if token.type != tokenize.NL:
            adjacent = token.type in (tokenize.STRING, middle)
    yield from joined(comments)
    yield from joined(strings)


def markdown_passages(text: str) -> Iterator[Passage]:
    lines, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        in_code ^= fence
        starts_item = re.match(r"\s*(?:[-*]|\d+\.|#+|\|) ?", line)
        if fence or in_code or starts_item:
            lines.append((number, ""))
        body = re.sub(r"`[^`]*`", "`code`", line)
        body = re.sub(r"\]\([^)]*\)", "]", body)
        lines.append((number, "" if fence else re.sub(r"^\s*(?:[-*#]+|\d+\.) ", "", body)))
    yield from paragraphs(lines)


def shell_passages(text: str) -> Iterator[Passage]:
    comments, strings = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            comments.append((number, line.lstrip().lstrip("#!")))
            continue
        trailing = re.search(r" # (.*)$", line)
        comments += [(number, ""), (number, trailing.group(1))] if trailing else []
        strings += [(number, quoted) for quoted in re.findall(r'"([^"]*)"', line)]
    yield from joined(comments)
    yield from joined(strings)


READERS = {
    **dict.fromkeys((".h", ".cc", ".cu", ".cuh", ".fbs"), cpp_passages),
    ".py": python_passages,
    ".md": markdown_passages,
    **dict.fromkeys((".sh", ".cmake", ".txt"), shell_passages),
}


def files_of(paths: tuple[str, ...]) -> list[Path]:
    found = []
    for path in paths:
        inside = [ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*")
        found += [file for file in inside if file.suffix in READERS and file.is_file()]
    return sorted(set(found))


def problems_in(path: str, text: str) -> list[str]:
    if path == THIS:
        return []
    return [
        f"{path}:{line}: {found!r}; write instead: {rule.instead}"
        for passage in READERS[Path(path).suffix](text)
        for line, rule, found in passage.findings()
        if (path, found) not in ALLOWED
    ]


def problems_of(paths: tuple[str, ...]) -> list[str]:
    return [
        problem
        for file in files_of(paths)
        for problem in problems_in(file.relative_to(ROOT).as_posix(), file.read_text())
    ]


def test_the_text_is_plain_english():
    problems = [each for each in problems_of(CHECKED) if each.split(":")[0] not in NOT_CLEAN]

    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.samples[0])
def test_a_rule_finds_its_samples_and_not_what_is_fine(rule):
    for sample in rule.samples:
        assert list(rule.search(sample)), sample
    for sample in rule.fine:
        assert not list(rule.search(sample)), sample


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.h", "/// A stride a\n/// dimension. Bytes a page.\nint a;  // again anew\n", [1, 2, 3]),
        ("a.cc", 'Fail("has not got "\n     "it", "is no tensor");\nint anew = 1\'000;\n', [1, 2]),
        ("a.cc", "int a;  // bytes\nint b;  // a page\n", []),
        ("a.py", 'def anew():\n    """Opens it.\n\n    Of the store.\n    """  # anew\n', [4, 5]),
        ("a.py", 'raise Error(f"{key} is no "\n            "tensor")\n', [1]),
        ("a.md", "# Opened anew\n\nA row\na step; see `anew`, [x](anew.md).\n", [1, 3]),
        ("a.sh", 'echo "made anew"  # for ever\nanew=1\n', [1, 1]),
        ("CMakeLists.txt", "# made\n# anew\nset(anew ON)\n", [2]),
    ],
)
def test_only_prose_is_read_and_lines_are_right(name, text, lines):
    found = sorted(int(problem.split(":")[1]) for problem in problems_in(name, text))

    assert found == lines


if __name__ == "__main__":
    listed = problems_of(tuple(sys.argv[1:]) or CHECKED)
    print("\n".join(listed))
    print(f"{len(listed)} problems", file=sys.stderr)
    sys.exit(1 if listed else 0)
