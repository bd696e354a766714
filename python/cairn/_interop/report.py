"""The programs' output, in the words of kv-admin, and the options that both verbs have."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from cairn._base.progress import amount, three_digits
from cairn._load.conversions import ConversionOptions, conversion_of
from cairn.convert import load_rules
from cairn.errors import Invalid, NotFound, Unavailable

_MAX_WARNINGS = 20


def conversion(options: Namespace) -> ConversionOptions | None:
    """The conversion that --rules, --rename and --dtype ask for. Raises Invalid, and NotFound or
    Unavailable if the rules cannot be read."""
    rules: list[Any] = []
    try:
        rules += load_rules(options.rules) if options.rules else []
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else Unavailable
        raise kind(f"opening the rules: {error.strerror} (file {options.rules})") from None
    for rename in options.rename:
        expression, equals, text = rename.partition("=")
        if not equals:
            raise Invalid(f"--rename '{rename}': write REGEX=TEXT")
        rules.append({"rename": expression, "to": text})
    is_asked = rules or options.rules or options.dtype
    return conversion_of(rules, options.dtype or None) if is_asked else None


def escape(text: str) -> str:
    """The text without characters that disturb a terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def say(text: str) -> None:
    print(escape(text), flush=True)


def complain(text: str) -> None:
    """Prints an error or a warning. A text that cannot be printed is not an error."""
    try:
        print(f"kv-admin: {escape(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def warn(texts: list[str]) -> None:
    for text in texts[:_MAX_WARNINGS]:
        complain(f"warning: {text}")
    if len(texts) > _MAX_WARNINGS:
        complain(f"warning: and {len(texts) - _MAX_WARNINGS:,} more")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_step(step: int, tensors: int, values: int, size: int, seconds: float) -> None:
    """One line: what was moved, how much, and how fast."""
    what = count(tensors, "tensor") + (f", {count(values, 'plain value')}" if values else "")
    rate = f"{amount(int(size / seconds))}/s" if seconds > 0 else "-"
    say(f"step {step}: {what}, {amount(size)}, in {three_digits(seconds, 's')} ({rate})")
