"""What golden stores contain, as JSON: of a state that was saved, and as both readers find it."""

import hashlib
import pickle

import cairn_reader
import numpy
import torch


def flatten(state):
    """The leaves of a state, in preorder."""
    if isinstance(state, (dict, list, tuple)):
        for child in state.values() if isinstance(state, dict) else state:
            yield from flatten(child)
    else:
        yield state


def skeleton(state):
    """The containers and keys of a state, without its leaves. A torch.Size is a tuple."""
    if isinstance(state, dict):
        items = ", ".join(f"{key!r}: {skeleton(child)}" for key, child in state.items())
        return f"{type(state).__name__}({items})"
    if isinstance(state, (list, tuple)):
        kind = "list" if isinstance(state, list) else "tuple"
        return f"{kind}({', '.join(map(skeleton, state))})"
    return "*"


def described(leaf, dtype=None):
    """Dtype, shape and digest of a tensor or an array; the text of a value, or its digest."""
    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        flat = leaf.detach().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return [dtype, list(leaf.shape), hashlib.sha256(data).hexdigest()[:32]]
    if isinstance(leaf, (numpy.ndarray, numpy.generic)):
        data = leaf.tobytes()
        return [dtype or leaf.dtype.name, list(leaf.shape), hashlib.sha256(data).hexdigest()[:32]]
    leaf = pickle.loads(leaf) if isinstance(leaf, cairn_reader.Pickle) else leaf
    text = hex(leaf) if type(leaf) is int else repr(leaf)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return text if len(text) <= 100 else [type(leaf).__name__, len(text), digest]


def found_by_cairn(store, step):
    """What Cairn reads of a step."""
    info = store.step_info(step)
    leaves = store.read(step=step, flat=True, allow_pickle=True)
    return {
        "state": skeleton(store.read(step=step, allow_pickle=True)),
        "leaves": {name: described(leaf) for name, leaf in leaves.items()},
        "records": {name: store.record(step, name).hex() for name in store.records(step)},
        "metrics": dict(info.metrics),
        "note": info.note,
        "run": info.run or "",
        "parent": [info.parent.step, info.parent.attempt] if info.parent else [],
        "statistics": {
            name: [found.zeros, found.nans, found.infs, repr(found.min), repr(found.max)]
            for name, found in store.statistics(step).items()
        },
        "tags": sorted(tag for tag, tagged in store.tags().items() if tagged == step),
    }


def found_by_reader(store, step):
    """What the reference reader finds of a step."""
    opened = store.step(step)
    names, state = opened.keys(), opened.state()
    dtypes = {
        name: None if kind == 9 else opened.tensor_record(name).dtype_name
        for name, kind in names.items()
    }
    leaves = zip(names, flatten(state), strict=True)
    summary = opened.summary
    bits = {metric.name: metric.bits for metric in summary.metrics or []}
    return {
        "state": skeleton(state),
        "leaves": {name: described(leaf, dtypes[name]) for name, leaf in leaves},
        "records": {name: data.hex() for name, data in opened.applications().items()},
        "metrics": {name: float(numpy.uint64(x).view("<f8")) for name, x in bits.items()},
        "note": summary.note or "",
        "run": bytes(summary.run or b"").hex(),
        "parent": [summary.parent.step, summary.parent.attempt] if summary.parent else [],
        "statistics": dict(statistics_of(opened)),
        "tags": sorted(tag for tag, tagged in store.tags.items() if tagged == step),
    }


def statistics_of(opened):
    """Those of the tensors of which each chunk has statistics, without the mean."""
    for name, kind in opened.keys().items():
        record = None if kind == 9 else opened.tensor_record(name)
        if record is None or record.alias_of:
            continue
        chunks = [chunk.statistics for _, chunk in opened.chunks(record)]
        if chunks and all(chunks):
            counts = [sum(getattr(one, x) for one in chunks) for x in ("zeros", "nans", "infs")]
            ends = (min(one.min for one in chunks), max(one.max for one in chunks))
            yield name, [*counts, *map(repr, ends)]
