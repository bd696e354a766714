"""The part of `kv-admin import` and `export` that is in Python. kv-admin checks the options."""

from __future__ import annotations

import argparse
import signal
import sys

from cairn._interop import exporting, importing
from cairn._interop.report import complain
from cairn.errors import Error


def main(words: list[str]) -> int:
    """Runs one verb. Returns the exit status of the program."""
    # States of any depth that is accepted are traversed by recursion.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options(words)
    try:
        (importing if options.verb == "import" else exporting).run(options)
    except (Error, OSError) as error:
        complain(str(error))
    except KeyboardInterrupt:
        complain("stopped")
    except MemoryError:
        complain("out of memory")
    else:
        return 0
    return 2


def _options(words: list[str]) -> argparse.Namespace:
    """The options of both verbs, each of which uses its own."""
    parser = argparse.ArgumentParser(prog="kv-admin", allow_abbrev=False)
    parser.add_argument("verb", choices=["import", "export"])
    parser.add_argument("store")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--step", type=int, required=True)
    for name in ("--dtype", "--format", "--program", "--rules"):
        parser.add_argument(name)
    for name in ("--index", "--pattern", "--rename", "--tag"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--overwrite", "--skip-unknown"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--base", type=int)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--shard-size", type=int, default=5_000_000_000)
    return parser.parse_intermixed_args(words)
