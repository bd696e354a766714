"""Writes a store with numpy only, and prints what a store contains, so that two architectures can
be compared: the numbers do not depend on the processor, the versions of libraries, or the time.

    python portable_store.py write STORE
    python portable_store.py read STORE...      prints one JSON document
    python portable_store.py reader STORE...    likewise, with cairn_reader only
"""

import hashlib
import json
import sys

import numpy

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
          "float16", "float32", "float64", "complex64", "complex128")  # fmt: skip


def elements(dtype, count, seed):
    """Random bits. Floating-point numbers are finite and of all magnitudes, except some that are
    infinite, NaN or zero."""
    random = numpy.random.default_rng(seed)
    kind = numpy.dtype(dtype)
    data = random.integers(0, 256, count * kind.itemsize, numpy.uint8)
    if dtype == "bool":
        return (data & 1).astype(bool)
    if kind.kind in "fc":
        part = kind.itemsize // (2 if kind.kind == "c" else 1)
        data.reshape(-1, part)[:, -1] &= 0xB7  # the highest byte, without the largest exponents
    array = data.view(kind)
    if kind.kind in "fc":
        array[:6] = [numpy.inf, -numpy.inf, numpy.nan, 0, -0.0, 1]
    return array


def write(path):
    import cairn

    state = {dtype: elements(dtype, 5_000, seed) for seed, dtype in enumerate(DTYPES)}
    state["exact"] = {"small": numpy.arange(-3000, 3000, dtype="float32") / 7,
                      "half": (numpy.arange(9000) / 977).astype("float16"),
                      "double": numpy.arange(4001) / 1e6}  # fmt: skip
    state["values"] = [1, -(2**70), 1.5, float("nan"), True, None, "ö", b"\0" * 5000, "x" * 8000]
    state["chunked"] = elements("float32", 60_000, 99).reshape(200, 300)
    with cairn.open(path, "a") as store:
        statistics = cairn.SaveTuning(statistics=True, chunk_bytes=1 << 16)
        store.save(1, state, tuning=statistics, metrics={"loss": 0.1}, note="one")
        for name in ("float16", "float32", "float64", "complex64", "chunked"):
            flat = state[name].reshape(-1)
            flat[7::50] = flat[6:-1:50]
        store.save(2, state, tuning=cairn.SaveTuning(deltas=4, statistics=True))
        state["int32"][::3] += 1
        store.save(3, state, tuning=cairn.SaveTuning(deltas=4, compress=True, statistics=True))
        store.set_compression(True)
        store.save(4, {"all": state, "again": state["float32"]}, tuning=statistics)
        store.merge([1, 2, 3], into=5, weights=[0.2, 0.3, 0.5])


def digest_of(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def described(leaf):
    if isinstance(leaf, (numpy.ndarray, numpy.generic)):
        return [str(leaf.dtype), list(leaf.shape), digest_of(leaf)]
    return repr(leaf)


def read(path):
    import cairn

    contents = {}
    with cairn.open(path) as store:
        for step in store.steps():
            assert not store.damaged_keys(step)
            leaves = store.read(step=step, flat=True)
            statistics = {
                name: [repr(getattr(found, field)) for field in
                       ("count", "zeros", "nans", "infs", "min", "max", "mean")]
                for name, found in store.statistics(step).items()
            }  # fmt: skip
            contents[step] = {
                "leaves": {name: described(leaf) for name, leaf in leaves.items()},
                "statistics": statistics, "metrics": dict(store.step_info(step).metrics),
            }  # fmt: skip
    return contents


def read_with_reader(path):
    import cairn_reader

    store = cairn_reader.Store(path)
    assert [str(error) for error in store.verify()] == []
    contents = {}
    for step in store.entries:
        opened = store.step(step)
        contents[step] = {"leaves": {name: described(opened.read(name)) for name in opened.keys()}}
    return contents


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    if verb == "write":
        write(paths[0])
    else:
        contents_of = {"read": read, "reader": read_with_reader}[verb]
        print(json.dumps([contents_of(path) for path in paths]))
