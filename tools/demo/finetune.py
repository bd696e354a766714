"""Fine-tuning on one license: loads only the GPT's embedding and first two layers, freezes them,
and trains a small new adapter after them.

    finetune.py --store DIR --from-step 120 --first-step 1000 --steps 90 --save-every 30 --log FILE
"""

import argparse
import json
import random
from pathlib import Path

import torch

import cairn
from corpus import next_batch, read_documents
from gpt import Adapted, Config

FROZEN = ("embed.", "layers.")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--from-step", type=int, required=True)
    parser.add_argument("--first-step", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()

    torch.manual_seed(8)
    random.seed(8)
    torch.set_num_threads(2)
    text = list(read_documents().values())[-1]
    config = Config(layers=2, dropout=0.0)
    model = Adapted(config)
    log = args.log.open("w", buffering=1)

    store = cairn.open(args.store, mode="a")

    # Only the requested keys of the step are read.
    frozen = {key: value for key, value in model.state_dict().items() if key.startswith(FROZEN)}
    loaded = store.load({"model": frozen}, step=args.from_step, strict=False)
    log.write(json.dumps({"keys": len(frozen), "missing": list(loaded.missing),
                          "bytes_read": loaded.bytes_read}) + "\n")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not name.startswith(FROZEN)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)

    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        report = store.save(args.first_step + step, state)
        log.write(json.dumps({"saved": report.step, "logical_bytes": report.logical_bytes,
                              "written_bytes": report.written_bytes, "chunks": report.chunks,
                              "chunks_reused": report.chunks_reused}) + "\n")

    for step in range(1, args.steps + 1):
        loss = model.loss(next_batch(text, config.context + 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        if step % args.save_every == 0:
            save(step)
    store.close()


if __name__ == "__main__":
    main()
