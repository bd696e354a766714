# SPDX-License-Identifier: Apache-2.0
"""The command line: lists, shows, verifies, and writes safetensors files."""

import argparse
import json
import os
import sys
import time

import numpy

from cairn_reader import VALUE, FormatError, Store
from cairn_reader.safetensors import write

EXAMPLES = """examples:
  python -m cairn_reader runs/gpt                      the steps
  python -m cairn_reader runs/gpt@latest               its keys (STEP: a number, a tag or latest)
  python -m cairn_reader runs/gpt@40 --key model.w --slice 0:2,3:
  python -m cairn_reader runs/gpt --verify             every byte; exit status 1 if damaged
  python -m cairn_reader runs/gpt@40 --safetensors model.safetensors --prefix model.
"""


def parse_slices(text):
    """"0:2,3:" as slices."""
    ends = [[int(x) if x else None for x in part.split(":")] for part in text.split(",")]
    if any(len(pair) != 2 for pair in ends):
        raise ValueError
    return tuple(slice(begin, end) for begin, end in ends)


def show(value):
    """A value, or the bytes of a tensor. Python refuses to show long numbers in decimal."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return {"dtype": str(value.dtype), "shape": value.shape, "hex": value.tobytes().hex()}
    is_long = isinstance(value, int) and value.bit_length() > 10_000
    return {"type": type(value).__name__, "value": hex(value) if is_long else repr(value)}


def list_steps(store):
    return [{**vars(entry.summary), "tags": [tag for tag, x in store.tags.items() if x == step]}
            for step, entry in store.entries.items()]  # fmt: skip


def list_keys(step):
    return [{"key": key, **(show(step.value(key)) if kind == VALUE
                            else vars(step.tensor_record(key)))}
            for key, kind in step.keys().items()]  # fmt: skip


def table(rows):
    """Lines of columns; those of numbers are on the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) if all(r[i].isdecimal() for r in rows[1:]) else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]  # fmt: skip
        yield "  ".join(cells).rstrip()


def printable(text):
    """Characters that a terminal may obey are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table_of_steps(steps):
    rows = [("STEP", "SAVED (UTC)", "TENSORS", "VALUES", "BYTES", "TAGS", "NOTE")]
    for step in steps:
        saved = time.gmtime(step["created_unix_ns"] // 10**9)
        numbers = (step["tensor_count"], step["value_count"], step["logical_bytes"])
        rows.append((
            str(step["step"]), time.strftime("%Y-%m-%d %H:%M:%S", saved), *map(str, numbers),
            ", ".join(step["tags"]), step["note"] or "",
        ))  # fmt: skip
    return table(rows)


def table_of_keys(keys):
    rows = [("KEY", "TYPE", "SHAPE OR VALUE")]
    for key in keys:
        value = str(key["shape"]) if "shape" in key else key["value"]
        value = value if len(value) <= 60 else value[:57] + "..."
        rows.append((key["key"], key.get("dtype_name") or key["type"], value))
    return table(rows)


def run(options):
    """Does what the options ask for. Returns the exit status."""
    directory, at, name = options.store.rpartition("@")
    if not at or os.path.exists(options.store):
        directory, name = options.store, ""
    if "://" in directory:
        raise FormatError(f"{directory}: this reader reads directories; copy the store first, "
                          f"for example with kv-admin pull")
    store = Store(directory)
    if options.verify:
        found = {"steps": len(store.entries), "errors": [str(error) for error in store.verify()]}
        lines = [*found["errors"], f"{found['steps']} steps, {len(found['errors'])} errors"]
    elif options.safetensors:
        step = store.step(name or None)
        left_out, bytes_written = write(step, options.safetensors, options.prefix)
        found = {"step": step.summary.step, "bytes": bytes_written, "left_out": left_out}
        lines = [f"step {step.summary.step}: {bytes_written:,} bytes in {options.safetensors}"]
        lines += [f"{left_out} values are left out: the format has only tensors"] * bool(left_out)
    elif options.key is not None:
        value = store.step(name or None).read(options.key, options.slice)
        found = show(value)
        is_array = isinstance(value, (numpy.ndarray, numpy.generic))
        lines = str(value).split("\n") if is_array else [found["value"]]
    elif name:
        found = list_keys(store.step(name))
        lines = table_of_keys(found)
    else:
        found = list_steps(store)
        lines = table_of_steps(found)
    if options.json:
        lines = [json.dumps(found, indent=1, default=lambda x: getattr(x, "hex", x.__str__)())]
    print(*(lines if options.json else map(printable, lines)), sep="\n")
    return 1 if isinstance(found, dict) and found.get("errors") else 0


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m cairn_reader", epilog=EXAMPLES,
        description="Reads and verifies a store of Cairn in a directory.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("store", metavar="STORE[@STEP]", help="a directory, and a step or tag")
    parser.add_argument("--key", help="print this tensor or value")
    parser.add_argument("--slice", type=parse_slices, default=(), help="of a tensor: 0:2,3:")
    parser.add_argument("--verify", action="store_true", help="print what is damaged")
    parser.add_argument("--safetensors", metavar="FILE", help="write the tensors of the step")
    parser.add_argument("--prefix", default="", help="only tensors whose names begin with this, "
                        "which the names in the file lose")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except (FormatError, OSError) as error:
        print(f"cairn_reader: {printable(str(error))}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
