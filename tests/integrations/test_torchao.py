"""Quantized weights and low-bit optimizers of torchao, through Cairn and through DCP, on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn_testing import run_python
from torch import nn

import cairn

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore")

DIM = 128


def quantized(config_name: str) -> nn.Module:
    import torchao.quantization as quantization

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM, dtype=torch.bfloat16), nn.ReLU())
    quantization.quantize_(model, getattr(quantization, config_name)())
    return model


def low_precision(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    weight = torch.randn(64, 64, dtype=torch.bfloat16)
    if name == "nvfp4":
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

        return NVFP4Tensor.to_nvfp4(weight)
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    dtype = torch.float8_e4m3fn if name == "mxfp8" else torch.float4_e2m1fn_x2
    return MXTensor.to_mx(weight, dtype, 32)


def parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}


def assert_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert type(got) is type(want)
    assert got.__tensor_flatten__()[1] == want.__tensor_flatten__()[1]
    ours, theirs = parts(got), parts(want)
    assert ours.keys() == theirs.keys()
    for name, part in ours.items():
        assert part.dtype == theirs[name].dtype
        assert torch.equal(part.view(torch.uint8), theirs[name].view(torch.uint8)), name


def zeroed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same class and context with other bytes."""
    names, context = tensor.__tensor_flatten__()
    inner = {name: torch.zeros_like(getattr(tensor, name)) for name in names}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())


QUANTIZED = [
    "Float8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8DynamicActivationIntxWeightConfig",
    "Int8WeightOnlyConfig",
    "IntxWeightOnlyConfig",
]


@pytest.mark.parametrize("kind", [*QUANTIZED, "nvfp4", "mxfp8", "mxfp4"])
def test_a_tensor_is_saved_read_and_loaded(tmp_path, kind):
    tensor = quantized(kind)[0].weight.data if kind in QUANTIZED else low_precision(kind)
    target = {"w": zeroed(tensor)}
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"w": tensor})
        assert "w.qdata" in store.keys()
        store.load(target)
        read = store.read()["w"]

    assert_equal(target["w"], tensor)
    assert_equal(read, tensor)
    assert torch.equal(read.dequantize(), tensor.dequantize())


def test_a_quantized_model_computes_the_same_after_a_load(tmp_path):
    model, other = quantized("Int8WeightOnlyConfig"), quantized("Int8WeightOnlyConfig")
    for part in parts(other[0].weight).values():
        part.data.view(torch.uint8).zero_()
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"model": model})
        store.load({"model": other})
    x = torch.randn(4, DIM, dtype=torch.bfloat16)
    assert torch.equal(other(x), model(x))


def test_a_new_process_reads_a_quantized_step_with_cairn_alone(tmp_path):
    with cairn.open(tmp_path / "s", mode="a") as store:
        store.save(1, {"w": quantized("Int8WeightOnlyConfig")[0].weight.data})
    program = """
import sys, cairn
with cairn.open(sys.argv[1]) as store:
    assert "torchao" not in sys.modules
    print(type(store.read()["w"]).__name__)
"""
    assert run_python(program, tmp_path / "s", fresh=True).stdout.strip() == "Int8Tensor"


# Optimizers

OPTIMIZERS = ["AdamW8bit", "AdamW4bit", "AdamWFp8"]


def new_run(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    import torchao.optim

    torch.manual_seed(1)
    model = nn.Linear(DIM, DIM)
    return model, getattr(torchao.optim, name)(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        x = torch.randn(8, DIM)
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()


def assert_same_run(a, b) -> None:
    for ours, theirs in zip(a[0].parameters(), b[0].parameters()):
        assert torch.equal(ours, theirs)
    ours, theirs = a[1].state_dict()["state"], b[1].state_dict()["state"]
    low_bit = 0
    for number in theirs:
        for name, value in theirs[number].items():
            if hasattr(value, "__tensor_flatten__"):
                low_bit += 1
                assert_equal(ours[number][name], value)
            else:
                assert torch.equal(torch.as_tensor(ours[number][name]), torch.as_tensor(value))
    assert low_bit == 2


@pytest.mark.parametrize("through", ["store", "dcp"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_a_low_bit_optimizer_resumes_bit_for_bit(tmp_path, name, through):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    whole = new_run(name)
    train(*whole, range(6))
    first = new_run(name)
    train(*first, range(3))
    resumed = new_run(name)
    train(*resumed, range(100, 101))  # creates the state of the optimizer, with other values

    if through == "store":
        with cairn.open(tmp_path / "s", mode="a") as store:
            store.save(3, {"model": first[0], "optimizer": first[1]})
            store.load({"model": resumed[0], "optimizer": resumed[1]})
    else:
        model, optimizer = get_state_dict(*first)
        dcp.save(
            {"model": model, "optimizer": optimizer}, storage_writer=CairnWriter(tmp_path / "s")
        )
        model, optimizer = get_state_dict(*resumed)
        dcp.load(
            {"model": model, "optimizer": optimizer}, storage_reader=CairnReader(tmp_path / "s")
        )
        set_state_dict(*resumed, model_state_dict=model, optim_state_dict=optimizer)
    assert_same_run(resumed, first)
    train(*resumed, range(3, 6))

    assert_same_run(resumed, whole)
