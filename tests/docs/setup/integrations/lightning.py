# page
from pytorch_lightning import LightningModule

class Fit(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def loss(self, batch):
        return (self.layer(batch).squeeze(1) - batch.sum(1)).square().mean()

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)

    val_dataloader = train_dataloader

model = Fit()
# before block 2
assert {path.suffix for path in pathlib.Path("runs/a").iterdir()} == {"", ".ckpt"}
with cairn.open("runs/a/cairn-store") as opened:
    assert len(opened.steps()) == len(list(pathlib.Path("runs/a").glob("*.ckpt"))) == 4
    state = opened.read()
first = model.layer.weight.detach().clone()
# after the page
assert torch.equal(first, checkpoint["state_dict"]["layer.weight"])
with cairn.open("runs/b") as opened:
    assert opened.steps()
