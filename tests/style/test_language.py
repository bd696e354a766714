"""Plain English in comments, docstrings, messages, scripts and documents.

Each rule is a regular expression for wording that readers have to read twice, and the wording to
use instead. Rules must be precise: a rule that rejects good sentences is worse than none.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What is checked: everything that people write, except for files that are not clean yet.
CHECKED = ("README.md", "CHANGELOG.md", "bench", "cmake", "core", "cuda", "docs", "examples", "kv",
           "python", "schema", "tests", "tools")  # fmt: skip
NOT_CLEAN = {
    "core/interop/model_directory/model_layout.cc",
    "core/interop/safetensors/safetensors_writer.h",
    "tests/install/consumer/consumer.cc",
    "tests/simulation/job.h",
    "tests/support/fake_s3.h",
    "tools/common/program.cc",
}

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

RULES = {
    rf"\b{COUNTED} an? {EACH}\b(?!{VERB})": "per: one stride per dimension",
    r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|later\b"
    r"|earlier\b|larger\b|smaller\b|worse\b|better\b|slower\b|faster\b|other\b)[a-z]+": "is not a",
    r"\b(?:has|have) not got\b": "does not have",
    r"\banew\b": "again",
    r"\bas ever\b(?! (?:in|be))": "as before, as usual",
    r"(?<!as )\bof now\b": "current",
    r"[;,] else (?!if\b|(?-i:[A-Z]))": "otherwise",
    r"\bapart from\b": "except for",
    r"\balike(?=[.,;]|\s\w)": "the same, in common, equally",
    r"(?<![\w-])beside(?= \w)": "next to, in addition to, during, compared with",
    r"\bmeanwhile\b": "in the meantime, concurrently",
    r"\bgo(?:es)? on\b|\bgoing on\b": "continue",
    r"(?<![\w-])(?:lies|lie|lay)(?=[.,]|\s\w)": "is, is stored",
    r"\bstands? (?:in|on|at|behind|beside|still|before|where|there)\b(?! for\b)":
        "is, is in, contains",
    r"\b(?:says?|tells?|told) (?:whether|which|what|how|where|who|why|so|nothing)\b":
        "state, report, return, determine",
    r"\bbrings\b": "copies, returns, provides",
    r"\bcomes? (?:back|along|again|whole|at once|by itself)\b": "is returned, is loaded",
    r"\bbehind (?:the training|(?:its|their|our|the caller's) backs?|it\b|them\b|one another"
    r"|another\b)": "in the background, after",
    r"\bof several ranks\b|\bmany ranks:": "in a multi-rank store",
    r"(?:[.;:,(] |\b(?:for|by) )who(?:ever)? (?!is\b|are\b)[a-z]+s\b": "callers that, code that",
    r"[^\w,'`)] ?(?-i:Of) (?:the|an?|all|its|this|these|each|every|one) [^,.;:]{1,60}\.":
        "a sentence: Length of the chunk.",
    r"\bof (?:its|their|our|your|one's) own\b"
    r"(?: (?:and|that|which|with|for|in|below)\b|(?! \w))": "separate, own, itself",
    r"\bgiv(?:es?|en|ing) back\b": "return, release",
    r"\bmakes? (?:an?|the|new) (?:store|file|index|directory|folder|tensors?|threads?|segment"
    r"|communicator)\b(?!'s)": "create",
}

CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?://[/!]?|#+) [^\n]*(?:\n[ \t]*(?://[/!]?|#+) [^\n]*)+")
COMMENT_LINE = re.compile(r"\n[ \t]*(?://[/!]?|#+)[ \t]*")
# Between two lines of a paragraph, or of a string in parts.
LINE_END = re.compile(r"(?: ?\"\n[ \t]*f?\"|\n[ \t]*)(?=[^\s/#])")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".fbs", ".py", ".md", ".sh", ".cmake", ".txt"}


def findings(text: str) -> Iterator[str]:
    """The wrong wording in a file, also if it continues on the next line."""
    comments = COMMENT.sub(lambda match: COMMENT_LINE.sub(" ", match.group()), text)
    unwrapped = LINE_END.sub(" ", CODE.sub("`code`", comments))
    for wrong, instead in RULES.items():
        for match in re.finditer(wrong, unwrapped, re.IGNORECASE):
            yield f"{match.group().strip()!r}; write instead: {instead}"


def test_the_text_is_plain_english():
    files = [path for name in CHECKED for path in (ROOT / name, *(ROOT / name).rglob("*"))]
    problems = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in files
        if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__)
        if path.relative_to(ROOT).as_posix() not in NOT_CLEAN
        for problem in findings(path.read_text())
    ]

    assert len(files) > 1000, "the list of files looks wrong"
    assert not problems, "\n".join(problems)


def test_wrong_wording_is_found_across_lines_and_not_in_code():
    wrong = ["/// A stride a\n/// dimension.", '"has not "\n    f"got one"', "  # made\n  # anew",
             "int a;\n/// Of the\n/// chunk.\n", "Opened\nanew.\n"]  # fmt: skip

    assert [len([*findings(text)]) for text in wrong] == [1] * len(wrong)
    assert not [*findings("one row per step; `anew`\n```\nas ever\n```\n")]
