# page
import socket
import sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=str(port))
import deepspeed
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
config = {
    "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True,
}

def train_one_step():
    loss = engine(torch.randn(4, 16).bfloat16()).float().square().mean()
    engine.backward(loss)
    engine.step()
# before block 2
with cairn.open("runs/a/cairn-store") as opened:
    assert opened.steps() == [1]
    assert any("exp_avg" in key for key in opened.keys())
own_model = torch.nn.Linear(16, 16)
own_optimizer = torch.optim.AdamW(own_model.parameters())
own, *_ = deepspeed.initialize(model=own_model, optimizer=own_optimizer, config=config)
own.backward(own(torch.randn(4, 16).bfloat16()).float().square().mean())
own.step()
own.save_checkpoint("runs/own")
# before block 3
command = "-m deepspeed.checkpoint.ds_to_universal --inject_missing_state"
folders = "--input_folder runs/own/global_step1 --output_folder runs/universal"
words = [*command.split(), *folders.split()]
subprocess.run([sys.executable, *words], check=True, capture_output=True)
# after the page
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
weights = get_fp32_state_dict_from_zero_checkpoint("runs/own")
with cairn.open("stores/a") as opened:
    assert opened.steps() == [100, 101]
    for step in opened.steps():
        found = opened.read("model", step=step)["model"]
        assert found.keys() == {"weight", "bias"} == weights.keys()
        assert all(torch.equal(found[name], value) for name, value in weights.items())
    assert opened.read("optimizer.weight.exp_avg", step=101)["optimizer"]["weight"]["exp_avg"].any()
