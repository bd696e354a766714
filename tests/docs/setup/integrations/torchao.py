# before block 2
from enum import Enum
from torchao.quantization import Int8Tensor as MyTensor

class MyEnumInItsContext(Enum):
    SYMMETRIC = 1
# after the page
assert type(weight).__name__ == "Int8Tensor"
assert torch.is_tensor(scale["frozen"]["0.weight"]["scale"])
