# page
from torchtitan.models.llama3.config_registry import llama3_debugmodel
# before command 1
# torchtitan's trainer builds the manager from its configuration in this way.
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

class Progress:
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, loaded):
        self.step = int(loaded["step"])

torch.distributed.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)
optimizers = default_adamw(lr=1e-2, implementation="for-loop").build(model_parts=[model])
schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
    optimizers=optimizers, training_steps=100)
manager = config.checkpoint.build(
    dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers,
    states={"train_state": Progress()}, sd_adapter=None, base_folder="dump")
for step in range(1, 401):
    manager.save(step)
    manager.maybe_wait_for_staging()
manager.close()
with cairn.open("dump/checkpoint", alone=True) as opened:
    assert opened.steps() == [200, 300, 400]
torch.distributed.destroy_process_group()
# after the page
with cairn.open("runs/titan/checkpoint") as opened:
    assert opened.steps()[-1] == 12
