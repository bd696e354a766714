# page
class App:
    def state_dict(self):
        return {"model": model.state_dict()}

    def load_state_dict(self, loaded):
        model.load_state_dict(loaded["model"])

app = App()
# before block 2
make_state = lambda: {"app": app}
last, step = 2000, 1100
# before block 3
state = {"app": app}
# before block 4
step += 100
# before block 5
state = {"model": model.state_dict()}
torch.distributed.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)
