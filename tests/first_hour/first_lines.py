"""Runs the lines of the README and of the tutorial as printed, in the working directory.

    python first_lines.py readme|tutorial|first-block|workers [ELSEWHERE]

With ELSEWHERE, the program changes to that folder as soon as a relative address was opened, and
returns for the next one. `first-block` is that of the tutorial, which saves the steps until 30; in
`workers`, the workers of a dataset read the store of the README.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import cairn
import cairn.dcp
import cairn.torch
import torch
import torch.distributed.checkpoint as dcp
from pages import DOCS, ROOT, blocks_of


README = ROOT / "README.md"
HOME = Path.cwd()


def move_after(module, name, elsewhere):
    """Lets a function of a module, which is called at home, change the working directory."""
    function = getattr(module, name)

    def open_and_move(*args, **kwargs):
        os.chdir(HOME)
        try:
            return function(*args, **kwargs)
        finally:
            os.chdir(elsewhere)

    setattr(module, name, open_and_move)


def programs_of(page):
    return [block for block in blocks_of(page.read_text()) if block.language == "python"]


def run_python(page, block, names):
    program = "\n" * block.line + block.code  # errors have the lines of the page
    exec(compile(program, page, "exec"), names)


def run_commands(block):
    for command in block.commands():
        done = subprocess.run(command, shell=True, cwd=HOME, capture_output=True, text=True)
        differs = command.startswith("kv-dump diff") and done.returncode == 1
        assert done.returncode == 0 or differs, (command, done.stderr)


class Loader:
    """Eight batches in a random order. As torchdata's StatefulDataLoader, which is used if it is
    installed, it draws from torch's generator when it creates an iterator, which state_dict() does
    if there is none."""

    def __init__(self):
        self.order, self.done = torch.randperm(8), 0
        self.iterator, self.is_new = None, False

    def __iter__(self):
        if not self.is_new:
            self.create()
        self.is_new = False
        return self.iterator

    def create(self):
        torch.rand(())
        self.iterator, self.is_new = self.batches(), True

    def batches(self):
        while self.done < 8:
            self.done += 1
            yield torch.full((4,), self.order[self.done - 1])

    def state_dict(self):
        if self.iterator is None:
            self.create()
        return {"order": self.order, "done": self.done}

    def load_state_dict(self, state):
        self.order, self.done = state["order"], state["done"]
        self.iterator, self.is_new = None, False


def make_loader():
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return Loader()
    batches = [torch.full((4,), i) for i in range(8)]
    return StatefulDataLoader(batches, batch_size=None, shuffle=True)


class Stop(Exception):
    """The end of a run that is interrupted."""


class Training:
    """What the README leaves out: a model with the names that it uses, and the rest of a run that
    draws random numbers."""

    def __init__(self, stop_after=8):
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(2))
        self.model = torch.nn.ModuleDict({"wte": torch.nn.Embedding(16, 256), "layers": layers})
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.loader = make_loader()
        self.steps_left = stop_after

    def train_one_step(self, batch):
        if self.steps_left == 0:
            raise Stop
        self.steps_left -= 1
        x = self.model["wte"](batch) * torch.rand(256)
        for layer in self.model["layers"]:
            x = layer(x)
        self.optimizer.zero_grad()
        x.square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def names(self, **others):
        return {"cairn": cairn, **vars(self), "train_one_step": self.train_one_step, **others}


def run_use():
    run_python(README, programs_of(README)[0], Training().names())


def run_readme():
    _, loop, script = programs_of(README)
    run_use()
    weights, starts = [], []
    for address, stops in (("runs/loop", (5, 8)), ("runs/uninterrupted", (8,))):
        for stop_after in stops:
            training = Training(stop_after)
            with cairn.open(address, mode="a") as store, contextlib.suppress(Stop):
                names = training.names(store=store)
                run_python(README, loop, names)
            starts.append(names["start"])
        weights.append(torch.cat([one.flatten() for one in training.model.parameters()]))
    assert starts == [0, 5, 0]
    assert torch.equal(*weights)

    (HOME / "demo-run").mkdir()
    (HOME / "runs/gpt").rename(HOME / "demo-run/store")  # the last block is another script
    for block in blocks_of(README.read_text()):
        run_commands(block)
    names = {"CairnWriter": cairn.dcp.CairnWriter, "CairnReader": cairn.dcp.CairnReader}
    saved = {"model": Training().model.state_dict()}
    run_python(README, script, {**names, "dcp": dcp, "state": saved})


def run_tutorial(only_first=False):
    page = DOCS / "tutorial.md"
    names = {"__name__": "tutorial"}
    for block in blocks_of(page.read_text()):
        if block.language != "python":
            run_commands(block)
        else:
            run_python(page, block, names)
            if only_first:
                return


class Rows(torch.utils.data.Dataset):
    """The rows of a tensor of a store that is open for reading."""

    def __init__(self, store):
        self.store = store

    def __len__(self):
        return 16

    def __getitem__(self, row):
        return self.store.read_slice("model.wte.weight", [(row, row + 1), (0, 256)])


def run_workers():
    run_use()
    with cairn.open("runs/gpt") as store:
        loader = torch.utils.data.DataLoader(
            Rows(store), batch_size=4, num_workers=2, multiprocessing_context="forkserver"
        )
        for _epoch in range(2):
            rows = torch.cat(list(loader)).reshape(16, 256)
            assert torch.equal(rows, store.read("model.wte.weight", flat=True)["model.wte.weight"])


def main():
    what, *elsewhere = sys.argv[1:]
    for folder in elsewhere:
        move_after(cairn, "open", folder)
        move_after(cairn.dcp, "CairnWriter", folder)
        move_after(cairn.dcp, "CairnReader", folder)
    torch.set_num_threads(1)
    if what == "first-block":
        run_tutorial(only_first=True)
    else:
        {"readme": run_readme, "tutorial": run_tutorial, "workers": run_workers}[what]()


if __name__ == "__main__":
    main()
