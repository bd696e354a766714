"""Fine-tunes all of the GPT gently and publishes its bf16 weights after every step, with deltas.

    publish.py --store DIR --from-step 120 --first-step 2000 --steps 6 --log FILE
"""

import argparse
import json
import random
from pathlib import Path

import torch

import cairn
from gpt import GPT, Config, next_batch, read_documents


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--from-step", type=int, required=True)
    parser.add_argument("--first-step", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()

    torch.manual_seed(9)
    random.seed(9)
    torch.set_num_threads(2)
    text = list(read_documents().values())[-1]
    model = GPT(Config(dropout=0.0))
    log = args.log.open("w", buffering=1)
    with cairn.open(args.store, mode="a") as store:
        store.load({"model": model}, step=args.from_step, strict=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        for step in range(args.first_step, args.first_step + args.steps):
            weights = {name: value.detach().bfloat16() for name, value in model.named_parameters()}
            report = store.save_async(step, {"weights": weights},
                tuning=cairn.SaveTuning(deltas=True)).result()
            log.write(json.dumps({"saved": step, "logical_bytes": report.logical_bytes,
                                  "written_bytes": report.written_bytes}) + "\n")
            optimizer.zero_grad()
            model.loss(next_batch(text, Config().context + 1)).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
