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
    verb, run = _VERBS[words[0]]
    options = verb().parse_intermixed_args(words[1:])
    try:
        run(options)
    except Error as error:
        complain(str(error))
    except KeyboardInterrupt:
        complain("stopped")
    except MemoryError:
        complain("out of memory")
    except OSError as error:
        complain(str(error))
    else:
        return 0
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kv-admin", allow_abbrev=False)
    parser.add_argument("store")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--rename", action="append", default=[])
    parser.add_argument("--rules")
    parser.add_argument("--dtype")
    return parser


def _import_parser() -> argparse.ArgumentParser:
    parser = _parser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--skip-unknown", action="store_true")
    parser.add_argument("--base", type=int)
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--index", action="append", default=[])
    parser.add_argument("--program")
    parser.add_argument("--format")
    return parser


def _export_parser() -> argparse.ArgumentParser:
    parser = _parser()
    parser.add_argument("target")
    parser.add_argument("--pattern", action="append", default=[])
    parser.add_argument("--format", choices=["safetensors", "hf", "torch", "dcp"], required=True)
    parser.add_argument("--shard-size", type=int, default=5_000_000_000)
    return parser


_VERBS = {"import": (_import_parser, importing.run), "export": (_export_parser, exporting.run)}
