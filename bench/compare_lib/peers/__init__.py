"""The peers, in the order in which tables and charts show them."""

from compare_lib.peers.base import Peer
from compare_lib.peers.cairn_peer import CairnLazy, CairnMapped, CairnPeer
from compare_lib.peers.dcp_peer import DcpPeer
from compare_lib.peers.limits import FileOperations, Fio, Memcpy, MemcpyTwo, Sum
from compare_lib.peers.safetensors_peer import SafetensorsPeer
from compare_lib.peers.sqlite_peer import SqlitePeer
from compare_lib.peers.tensorstore_peer import TensorStorePeer
from compare_lib.peers.torch_checkpointing_peer import TorchCheckpointingPeer
from compare_lib.peers.torch_peer import TorchMapped, TorchPeer

PEERS: list[type[Peer]] = [
    CairnPeer,
    CairnMapped,
    CairnLazy,
    DcpPeer,
    TorchPeer,
    TorchMapped,
    SafetensorsPeer,
    TensorStorePeer,
    TorchCheckpointingPeer,
    SqlitePeer,
    Fio,
    Memcpy,
    MemcpyTwo,
    Sum,
    FileOperations,
]
