"""`cairn.open`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cairn._base.addresses import absolute_address
from cairn._base.open_options import GivenCredentials, OpenOptions, credentials_function
from cairn.store import Store

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from cairn._base.progress import Progress


def open(
    address: str | os.PathLike[str],
    mode: str = "r",
    process_group: ProcessGroup | None = None,
    *,
    alone: bool = False,
    timeout: float = 1800.0,
    arrival: float = 300.0,
    take_over: bool = False,
    grace: float | None = None,
    credentials: GivenCredentials = None,
    fallback: Sequence[str | os.PathLike[str]] = (),
    progress: Progress = False,
) -> Store:
    """Opens a store.

    Under ``torch.distributed`` with more than one rank, the ranks of the process group open the
    store together: each of them calls this function. Every rank then calls ``save``,
    ``save_async``, ``load``, ``delete``, ``prune`` and ``close``, in the same order, and an error
    on one rank is raised on all of them. Each rank may call the other methods by itself.

    Args:
        address: ``PATH`` or ``file:PATH``, a directory, which all ranks must share;
            ``s3://BUCKET/PREFIX[?endpoint=URL&region=R]``, in an S3-compatible object store; or
            ``rados:POOL/NAMESPACE[?conf=FILE&data_pool=POOL]``, in a Ceph cluster. A relative path
            becomes absolute when it is given; one that begins with ``~`` is refused.
        mode: ``"r"`` reads, and sees the steps that a concurrent writer commits. ``"a"`` reads and
            writes, and creates the store if it does not exist. Only one process, or the ranks of
            one group, may have a store open for writing at a time.
        process_group: the group whose ranks open the store together; by default the default group,
            if there is one. Any backend works: the group is used only to exchange the addresses
            at which the ranks connect.
        alone: this process opens the store by itself, whatever process groups exist. For tools, and
            for a reader on one rank.
        timeout: seconds that ranks wait for each other in any call before the call fails.
        arrival: seconds, at most ``timeout``, that ranks wait for the others to begin the same call
            before it fails with Unavailable, which names the ranks that have not come.
        take_over: becomes the writer even if another process has the store open for writing, for
            example because that process hangs, or ran on a machine that has failed. From then on,
            every save and delete of that process fails with Conflict and changes nothing. In a
            multi-rank store, the value on rank 0 counts.
        grace: seconds for which the files of deleted and overwritten steps remain, so that readers
            can finish what they have begun to read; by default 60. After this time, the next save,
            delete, close or open for writing removes the files, and so does a save to which the
            disk has no more room. With 0, the delete or overwrite itself removes them. In a
            multi-rank store, the value on rank 0 counts.
        credentials: for a store in a bucket, the only source of credentials: a session of boto3 or
            botocore, which knows roles, SSO and web identities, or a function. By default,
            credentials are found in the environment, profiles, container and machine services
            (docs/object-stores.md). The function is called when credentials are needed and after
            the server has rejected the previous ones. It returns a mapping with ``access_key_id``,
            ``secret_access_key`` and optionally ``session_token`` and ``expiry`` (seconds since
            1970).
        fallback: addresses of stores with copies of the steps, from near to far, such as mirrors
            (docs/mirroring.md). ``load`` and the methods that read use the nearest store that has
            the step; by default, the latest one in any store. If different steps have the same
            number, the one that was saved last is used. The stores need not exist; with mode
            ``"r"``, one of them or ``address`` must. Saves and deletes concern ``address`` alone.
        progress: ``True`` shows the progress of calls that take longer than a second, on rank 0 and
            if standard error is a terminal, as a bar of tqdm if it is installed and otherwise as a
            line. A function is called with the bytes that are done and those in all, at most ten
            times per second; if it returns False, the call raises Unavailable.

    Raises:
        NotFound: the store does not exist (``"r"``).
        Conflict: another process has it open for writing (``"a"``); the message contains its host
            and pid, and since when it has been the writer.
        Corrupt: the store is damaged.
        Invalid: the directory is not a store, or has another format; the mode, the address or the
            grace period is not valid; ``take_over`` without mode ``"a"``; this process is not in
            the group, or the ranks see different directories.
        Unavailable: a permission or I/O error; a rank did not connect in time.
    """
    options = OpenOptions(
        alone,
        timeout,
        take_over,
        grace,
        credentials_function(credentials),
        _addresses(fallback),
        progress,
        arrival,
    )
    return Store(address, mode, process_group, options)


def _addresses(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    several = (given,) if isinstance(given, (str, os.PathLike)) else given
    return tuple(absolute_address(one) for one in several)
