# page
import socket
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
own, *_ = deepspeed.initialize(
    model=torch.nn.Linear(16, 16), config={**config, "optimizer": {"type": "AdamW"}})
own.backward(own(torch.randn(4, 16).bfloat16()).float().square().mean())
own.step()
own.save_checkpoint("runs/own")
# after the page
with cairn.open("stores/a") as opened:
    assert opened.steps() == [100]
    assert {"model.weight", "optimizer.state.weight.exp_avg", "global_steps"} <= set(opened.keys())
