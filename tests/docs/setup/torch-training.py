# page
class App:
    def state_dict(self):
        return {"model": model.state_dict()}

    def load_state_dict(self, loaded):
        model.load_state_dict(loaded["model"])

app = App()

def connect():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)
# before block 2
import shutil
shutil.rmtree("runs/gpt")
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
scaler = torch.amp.GradScaler("cpu")
last = 100
# before block 4
make_state = lambda: {"app": app}
last, step = 2000, 1100
# before block 5
state = {"app": app}
# before block 6
saver.close()
store.close()
store = cairn.open("runs/data", mode="a")
data = torch.arange(64)
state = {"model": model.state_dict()}
make_state = lambda: state
last = 1100
connect()
# before block 7
store.close()
store = cairn.open("runs/gpt", mode="a")
step += 100
# before block 8
state = {"model": model.state_dict()}
connect()
