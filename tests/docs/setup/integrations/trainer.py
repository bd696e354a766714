# page
import transformers
from accelerate import Accelerator
from hf_models import make

data = [{"input_ids": torch.arange(6), "labels": torch.arange(6)}] * 8
arguments = transformers.TrainingArguments(
    output_dir="out", max_steps=2, save_steps=1, report_to="none", use_cpu=True)
trainer = transformers.Trainer(model=make("llama"), args=arguments, train_dataset=data)
accelerator = Accelerator(cpu=True)
accelerator.prepare(torch.nn.Linear(2, 2))
train_one_step = lambda: None
# after the page
for store in ("runs/sft", "runs/loop"):
    with cairn.open(store) as opened:
        assert opened.steps()
assert not pathlib.Path("checkpoints").exists()
