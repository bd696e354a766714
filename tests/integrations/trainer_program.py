"""Trains a tiny model, with checkpoints in a store; for tests that kill it and start it again.

    python trainer_program.py STORE OUT [--kill-at STEP] [--lora] [--steps N] [--evaluate]
"""

import argparse
import hashlib
import os
import signal

import torch
import transformers
from hf_models import make, tokenizer

import cairn.hf
from cairn.hf import CairnCallback


class PrintAndKill(transformers.TrainerCallback):
    """Prints the losses, and kills the process without any warning in a step."""

    def __init__(self, kill_at):
        self.kill_at = kill_at

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs and args.process_index == 0:
            numbers = f"{logs['loss']},{logs['grad_norm']},{logs['learning_rate']}"
            print(f"step {state.global_step} loss {numbers}", flush=True)

    def on_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def model_of(lora, store):
    if not lora:
        return make("gpt2").train()  # with dropout, so that random states matter
    import peft

    base = cairn.hf.from_pretrained(f"{store}-base@0")
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.2, fan_in_fan_out=True)
    torch.manual_seed(5)
    return peft.get_peft_model(base, config)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("out")
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--evaluate", action="store_true")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(11)
    data = [
        {"input_ids": row, "labels": row}
        for row in torch.randint(0, 30, (48, 8), generator=generator)
    ]
    # 12 batches per epoch: 14 steps of 2 batches are more than two epochs.
    options = transformers.TrainingArguments(
        output_dir=arguments.out, max_steps=arguments.steps, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=1e-2, lr_scheduler_type="cosine",
        warmup_steps=2, logging_steps=1, save_strategy="steps", save_steps=3, save_total_limit=2,
        report_to="none", use_cpu=True, seed=3, disable_tqdm=True, weight_decay=0.1,
        eval_strategy="steps" if arguments.evaluate else "no", eval_steps=3,
    )
    model = model_of(arguments.lora, arguments.store)
    trainer = transformers.Trainer(
        model=model, args=options, train_dataset=data, eval_dataset=data[:4],
        processing_class=tokenizer(), callbacks=[PrintAndKill(arguments.kill_at)],
    )
    with CairnCallback(arguments.store) as checkpoints:
        checkpoints.attach(trainer)
        trainer.train(resume_from_checkpoint=checkpoints.latest())
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    if options.process_index == 0:
        print(f"weights {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
