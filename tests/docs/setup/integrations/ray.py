# page
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ray.init(num_cpus=4, include_dashboard=False)

def clean_up():
    ray.shutdown()
# before block 2
folder = os.path.abspath("runs/ray")
trainer = TorchTrainer(
    train_func, train_loop_config={"store": folder + "/store", "steps": 3},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="run", storage_path=folder))
# after the page
assert (address, step) == (folder + "/store", 2)
with cairn.open(address) as opened:
    assert opened.steps() == [0, 1, 2] and opened.step_info(2).ranks == 2
