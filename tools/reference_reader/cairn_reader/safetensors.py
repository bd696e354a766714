# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors of a step as a safetensors file."""

import contextlib
import json
import os

from cairn_reader import VALUE, FormatError, check

NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
}  # fmt: skip
ALIGNMENT = 8  # bytes, of the first tensor


def write(step, path, prefix=""):
    """Writes the tensors whose names begin with `prefix`, which the names in the file lose.

    Tensors that share memory are each written in full. Until the file is complete, it has another
    name, and an older file remains. Memory: the largest tensor.

    Returns how many values are left out, and the bytes of the file. Raises FormatError for a dtype
    that the format does not have, for no tensor at all, and if the store is damaged; OSError if the
    file cannot be written.
    """
    selected = {name: kind for name, kind in step.keys().items() if name.startswith(prefix)}
    records = [step.tensor_record(name) for name, kind in selected.items() if kind != VALUE]
    check(records, f"no tensor of {step.where} begins with {prefix!r}")
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for record in records:
        header[record.name[len(prefix) :]] = describe(record, at)
        at += record.nbytes
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"a name is not UTF-8, which the format needs: {error}") from None
    text += b" " * (-len(text) % ALIGNMENT)
    new = f"{path}.{os.getpid()}.tmp"
    try:
        with open(new, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for record in records:
                file.write(step.tensor(record.name).tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    return len(selected) - len(records), 8 + len(text) + at


def describe(record, begin):
    """The entry of a tensor in the header. Elements of F4 are counted, and not their pairs."""
    name, shape = NAMES.get(record.dtype_name), list(record.shape)
    check(name, f"{record.name!r}: safetensors files cannot hold {record.dtype_name}")
    check(name != "F4" or shape, f"{record.name!r}: the format has no scalar of two elements")
    if name == "F4":
        shape[-1] *= 2
    return {"dtype": name, "shape": shape, "data_offsets": [begin, begin + record.nbytes]}
