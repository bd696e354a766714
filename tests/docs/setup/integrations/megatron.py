# page
from megatron.core import parallel_state
from megatron.core.dist_checkpointing import ShardedTensor

torch.distributed.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
os.makedirs("run/iter_0000100")

def describe():
    weight = ShardedTensor.from_rank_offsets("weight", model.head.weight.data)
    return {"step": 100, "weight": weight}

sharded_state_dict = describe()
# before command 1
assert state["step"] == 100 and torch.equal(state["weight"], model.head.weight)
with cairn.open("run/cairn-store", alone=True) as opened:
    assert opened.steps() == [100]
torch.distributed.destroy_process_group()
# after the page
with cairn.open("runs/megatron/cairn-store") as opened:
    assert opened.steps()[-1] == 12
