"""Tensors of every dtype, layout and origin; shared memory; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, payload, random_tensor, shares_storage

import cairn

# Every dtype that this torch has, so that a new one is noticed.
ALL_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
QUANTIZED = [torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4]
PLAIN_DTYPES = [dtype for dtype in ALL_DTYPES if dtype not in QUANTIZED]
NUMPY_DTYPES = "? b h i l B H I L e f d F D".split()
COMPLEX = torch.arange(6).to(torch.complex64) * (1 + 2j)


@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_every_dtype_keeps_every_bit(store, dtype):
    state = {
        "matrix": random_tensor(dtype, 3, 5),
        "scalar": random_tensor(dtype),
        "none": torch.empty(0, 4, dtype=dtype),
    }
    store.save(1, state)

    assert_same(store.read(), state)
    assert store.keys()["matrix"].dtype == str(dtype).removeprefix("torch.")
    assert payload(store.read_slice("matrix", [(1, 3)])) == payload(state["matrix"][1:])

    target = {key: torch.empty_like(value) for key, value in state.items()}
    store.load(target)
    assert_same(target, state)


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_quantized_dtypes_are_refused_with_a_way_out(store, dtype):
    with pytest.raises(cairn.Invalid, match="int_repr") as caught:
        store.save(1, {"layer": {"q": torch.empty(4, dtype=dtype)}})
    assert caught.value.key == "layer.q"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: torch.eye(3).to_sparse(), "to_dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "to_dense"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "unbind"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "values"),
        (lambda: torch.empty(3, device="meta"), "materialize"),
        (lambda: torch.ones(3).as_subclass(type("Mine", (torch.Tensor,), {})), "as_subclass"),
        (lambda: np.array([object()]), "only numbers"),
        (lambda: np.array(["text"]), "only numbers"),
        (lambda: np.array(["2026-01-01"], dtype="datetime64[D]"), "view it as integers"),
        (lambda: np.zeros(2, dtype=[("x", "f4")]), "only numbers"),
        (lambda: np.ma.masked_array([1, 2], [0, 1]), "np.asarray"),
        (lambda: np.longdouble(1), "only numbers"),
    ],
)
def test_tensors_that_are_no_plain_memory_are_refused(store, make, way_out):
    with pytest.raises(cairn.Invalid) as caught:
        store.save(1, {"outer": [make()]})
    assert caught.value.key == "outer.0"
    assert way_out in str(caught.value)


def test_a_tensor_whose_storage_is_gone_is_refused(store):
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(cairn.Invalid, match="freed"):
        store.save(1, {"t": tensor})


LAYOUTS = {
    "permuted": torch.arange(60).view(3, 4, 5).permute(2, 0, 1),
    "strided": torch.arange(60).view(6, 10)[::2, 3:9:2],
    "expanded": torch.arange(5).expand(4, 5),
    "scalar": torch.tensor(3.5).expand(2, 3),
    "large": torch.arange(4 * 70000).view(4, 70000).t(),
    "conj": COMPLEX.view(2, 3).conj(),
    "neg": COMPLEX.conj().imag,
    "empty": torch.empty(3, 0, 2),
    "param": torch.nn.Parameter(torch.ones(3)),
    "grad": torch.ones(2, requires_grad=True) * 2,
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_is_read_as_its_values(store, tensor):
    store.save(1, {"t": tensor})
    read = store.read()["t"]
    assert read.is_contiguous()
    assert read.dtype == tensor.dtype
    assert read.shape == tensor.shape
    assert not read.requires_grad
    assert torch.equal(read, tensor.detach().resolve_conj().resolve_neg())


@pytest.mark.parametrize("code", NUMPY_DTYPES)
def test_numpy_arrays_and_scalars(store, code):
    array = np.arange(12).reshape(3, 4).astype(code)
    state = {"a": array, "s": array.dtype.type(1), "zero_d": np.array(1, code), "empty": array[:0]}
    store.save(1, state)
    assert_same(store.read(), state)


ARRAYS = {
    "big endian": np.arange(12, dtype=">f4").reshape(3, 4),
    "both": np.arange(12, dtype=">i8")[::-2],
    "reversed": np.arange(12.0).reshape(3, 4)[::-1, ::-1],
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "strided": np.arange(12, dtype=np.int16)[1::3],
    "unaligned": np.frombuffer(bytes(range(17)), np.uint8)[1:].view(np.float32),
    "field": np.zeros(3, dtype=[("a", "u1"), ("b", "f4")])["b"],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_any_numpy_layout_is_read_as_its_values(store, array):
    store.save(1, {"a": array})
    read = store.read()["a"]
    assert read.dtype.isnative and read.flags.c_contiguous and read.flags.writeable
    assert_same(read, array)


class SpeaksDlpack:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **kwargs):
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack_objects_are_saved_as_tensors_and_loaded_in_place(store):
    store.save(1, {"d": SpeaksDlpack(torch.arange(5))})
    assert_same(store.read(), {"d": torch.arange(5)})

    target = SpeaksDlpack(torch.zeros(5, dtype=torch.int64))
    store.load({"d": target})
    assert torch.equal(target.tensor, torch.arange(5))


def test_views_come_back_sharing_storage(store):
    base = torch.arange(1000, dtype=torch.float32).view(20, 50)
    state = {
        "base": base,
        "row": base[3],
        "column": base[:, 7],
        "corner": base[2:4, 10:13],
        "transposed": base.t(),
        "bits": base.view(torch.int32),
        "numpy": base.numpy()[5],
    }
    report = store.save(1, state)
    assert report.logical_bytes == base.nbytes

    read = store.read()
    for key in ("row", "column", "corner", "transposed", "bits"):
        assert shares_storage(read[key], read["base"]), key
        assert torch.equal(read[key], state[key])
    read["base"].fill_(-1)
    assert torch.equal(read["transposed"], torch.full((50, 20), -1.0))
    assert np.array_equal(read["numpy"], np.full(50, -1, np.float32))


def test_a_part_of_shared_memory_is_read_alone(store):
    base = torch.arange(1 << 20)
    store.save(1, {"all": base, "few": base[5:8], "same": base[5:8], "odd": base[1::2]})
    read = store.read(["few", "same"])
    assert read["few"] is read["same"]
    assert torch.equal(read["few"], base[5:8])
    assert read["few"].untyped_storage().nbytes() == 24
    assert torch.equal(store.read("odd")["odd"], base[1::2])
    assert torch.equal(store.read_slice("odd", [(3, 5)]), base[1::2][3:5])


def test_shared_numpy_memory_comes_back_shared(store):
    base = np.arange(100, dtype=np.float64)
    tensor = torch.from_numpy(base)
    store.save(
        1, {"base": base, "part": base[10:20], "torch": tensor[5:15], "bytes": base.view("u1")[3:9]}
    )
    read = store.read()
    read["base"][:] = 7
    assert np.array_equal(read["part"], np.full(10, 7.0))
    assert torch.equal(read["torch"], torch.full((10,), 7.0, dtype=torch.float64))
    assert_same(read["bytes"], read["base"].view("u1")[3:9])


def test_a_torch_without_dlpack_functions_is_served_all_the_same(store, monkeypatch):
    # Older versions of torch have none, and then every tensor is asked in Python.
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None, raising=False)
    weight = random_tensor(torch.bfloat16, 5, 3)
    state = {"weight": weight, "tied": weight, "column": weight[:, 1], "n": 3}
    store.save(1, state)

    read = store.read()
    assert_same(read, state)
    assert shares_storage(read["weight"], read["tied"])

    target = {"weight": torch.empty_like(weight)}
    store.load(target, strict=False)
    assert_same(target["weight"], weight)
