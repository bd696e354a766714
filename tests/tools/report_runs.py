"""Stores for the tests of `kv-dump report`."""

import math

import numpy as np

import cairn

LAYERS = 8
PRE_TRAINING_ENDS = 290
LAST_STEP = 2990
NAN_STEP = 1830
NAN_LAYER = 6


def _model(generator):
    def weight(*shape):
        return (generator.standard_normal(shape) * 0.02).astype(np.float32)

    layers = [
        {
            "attn": {"qkv": {"weight": weight(96, 32)}, "out": {"weight": weight(32, 32)}},
            "mlp": {"up": {"weight": weight(128, 32)}, "down": {"weight": weight(32, 128)}},
            "norm": {"weight": np.ones(32, np.float32)},
        }
        for _ in range(LAYERS)
    ]
    return {"wte": {"weight": weight(1000, 32)}, "layers": layers,
            "head": {"weight": weight(1000, 32)}}  # fmt: skip


def _tensors(tree):
    if isinstance(tree, np.ndarray):
        yield tree
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(part)


def prepared_run(path):
    """A run of 300 steps: 30 of pre-training, then fine-tuning of the second half of the layers.

    In fine-tuning, the first half of the layers and the embedding do not change, `replay.buffer`
    grows with every step, and at NAN_STEP the layer NAN_LAYER gets NaN, which spread from the
    next step on to all that is trained.
    """
    generator = np.random.default_rng(1)
    model = _model(generator)
    with cairn.open(path, mode="a") as store:
        moments = {"exp_avg": {f"p{i}": np.zeros_like(t) for i, t in enumerate(_tensors(model))}}
        for step in range(0, PRE_TRAINING_ENDS + 1, 10):
            for tensor in [*_tensors(model), *_tensors(moments)]:
                tensor += generator.standard_normal(1).astype(np.float32) * 1e-3
            metrics = {"loss": 8 * math.exp(-step / 400) + 2, "lr": 3e-4}
            store.save(step, {"model": model, "optimizer": moments},
                tuning=cairn.SaveTuning(statistics=True),
                       metrics=metrics, tags=["pretrained"] if step == PRE_TRAINING_ENDS else [])
        trained = [*_tensors(model["layers"][LAYERS // 2 :]), model["head"]["weight"]]
        buffer = np.zeros((0, 64), np.float32)
        for step in range(PRE_TRAINING_ENDS + 10, LAST_STEP + 1, 10):
            for tensor in trained:
                tensor += generator.standard_normal(1).astype(np.float32) * 1e-4
            if step == NAN_STEP:
                model["layers"][NAN_LAYER]["mlp"]["up"]["weight"][3, :5] = np.nan
                model["layers"][NAN_LAYER]["mlp"]["down"]["weight"][1, 2] = np.nan
            elif step > NAN_STEP:
                for tensor in trained:
                    tensor[..., 0] = np.nan
            buffer = np.concatenate([buffer, generator.random((4, 64), np.float32)])
            loss = 2 * math.exp(-step / 900) + 1 if step < NAN_STEP else math.nan
            store.save(step, {"model": model, "replay": {"buffer": buffer, "size": len(buffer)}},
                       tuning=cairn.SaveTuning(statistics=True), metrics={"loss": loss, "lr": 1e-5},
                       tags=["best"] if step == 1500 else [])
    return path
