"""The processes that use a store together: ranks of a torch process group, connected by Cairn.

The process group is used once, to exchange the addresses at which the ranks listen. After that they
communicate over the C++ communicator, in which every call has a deadline and fails immediately when
a peer dies. Tensors on devices are sent over NCCL if all ranks have it (nccl.py).
"""

from __future__ import annotations

import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from cairn import _cairn, errors
from cairn._ranks.arrival import Notes, await_all_ranks
from cairn.errors import Error, Invalid, Unavailable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


_OK, _FAILED = b"\0", b"\1"


class Ranks:
    """The ranks that make the same calls in the same order; possibly only this process.

    Threads: only one thread at a time makes collective calls (``exchange``, ``run_together``).
    """

    def __init__(
        self,
        communicator: _cairn.Communicator | None,
        numbers: dict[int, int],
        device: Any,
        timeout: float,
        nccl_objection: str | None = None,
        bound_device: int | None = None,
        notes: Notes | None = None,
    ) -> None:
        """``nccl_objection``: why NCCL must not be used unless the environment requires it.
        ``bound_device``: the device of the process group. ``notes``: where a rank that leaves
        states why."""
        self.communicator = communicator
        """None for a single process."""
        self._numbers = numbers
        """The rank in this object of each rank of torch's default group that is one of its
        ranks."""
        self.device = device
        """Where torch allocates tensors for the group; None for a single process."""
        self.timeout = timeout
        """Seconds that ranks wait for each other."""
        self.arrival = timeout
        """Seconds that ranks wait for the others to begin the same call."""
        self._notes = notes
        self._nccl_objection = nccl_objection
        self._bound_device = bound_device
        self._warning: str | None = None
        self.compared: Any = None
        """The cairn._save.differing.Compared of the saves; None before the first."""
        self.layouts: Any = None
        """What the ranks hold, as their last save has found it: cairn._save.multi_rank_save."""
        self._has_nccl: bool | None = None
        """None until a call has tensors on devices; after that, equal on all ranks."""
        self.transport = (
            "none: there is only this process"
            if communicator is None
            else "host memory; NCCL is tried when a call has tensors on devices"
        )
        """How tensors on devices are sent between ranks, and why."""

    @property
    def rank(self) -> int:
        return 0 if self.communicator is None else self.communicator.rank

    @property
    def world_size(self) -> int:
        return 1 if self.communicator is None else self.communicator.world_size

    def numbers_of(self, global_ranks: list[int]) -> list[int] | None:
        """The ranks in this object of the global ranks of a device mesh; None if one is missing."""
        if self.communicator is None:
            return self._numbers_in_one_process(global_ranks)
        numbers = [self._numbers.get(rank) for rank in global_ranks]
        return None if None in numbers else numbers

    def _numbers_in_one_process(self, global_ranks: list[int]) -> list[int]:
        # This process is rank 0 here, whatever its global rank is; the others must only be
        # distinct.
        local_rank = next(iter(self._numbers), 0)
        return [{local_rank: 0, 0: local_rank}.get(rank, rank) for rank in global_ranks]

    def begin(self, call: str) -> None:
        """Returns when all ranks have begun the same call, before any of them works. Collective.

        Raises Unavailable if some do not begin one within `arrival` seconds, with their numbers on
        all ranks, also on these when they come; and Invalid if the ranks begin different calls.
        """
        if self.communicator is not None:
            self._or_leave(lambda: self._meet(call))

    def _meet(self, call: str) -> None:
        calls = self._send(lambda: self.communicator.arrive(call, self.arrival), call)
        if len(set(calls)) > 1:
            named = ", ".join(f"rank {rank} {one}" for rank, one in enumerate(calls))
            raise self._agreed(Invalid(f"the ranks make different calls: {named}"))

    def exchange(self, work: Callable[[], bytes]) -> list[bytes]:
        """Returns what ``work()`` returns on each rank, in the order of ranks. Collective.

        If it raises on one rank, every rank raises: that rank its own exception, the others an
        exception that names the rank. An exception that the others do not know about (Ctrl-C, a
        broken connection) closes the connections, so that the others fail immediately.
        """
        if self.communicator is None:
            return [work()]
        return self._or_leave(lambda: self._exchange(work))

    def _or_leave(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except BaseException as error:
            self.leave(error)
            raise

    def exchange_values(self, work: Callable[[], Any]) -> list[Any]:
        """What `work()` returns on each rank, which JSON can express (tuples may become lists); as
        in `exchange`."""
        if self.communicator is None:
            return [work()]
        import json
        import zlib

        def encode() -> bytes:
            # Integers may be numpy's.
            return zlib.compress(json.dumps(work(), default=operator.index).encode(), 1)

        return [json.loads(zlib.decompress(one)) for one in self.exchange(encode)]

    def run_and_exchange(self, work: Callable[[], tuple[T, Any]]) -> tuple[T, list[Any]]:
        """The first result of `work()` on this rank, and the second one on each rank; as in
        `exchange_values`."""
        results = []

        def run() -> Any:
            result, value = work()
            results.append(result)
            return value

        replies = self.exchange_values(run)
        return results[0], replies

    def on_first(self, work: Callable[[], Any]) -> Any:
        """What `work()`, which only rank 0 calls, returns there; as in `exchange_values`."""
        return self.exchange_values(lambda: work() if self.rank == 0 else None)[0]

    def has_agreed_on(self, error: BaseException) -> bool:
        """True if an exchange has raised this error on every rank, so that they may continue."""
        # Recorded in the error: a stored error would keep alive all that its frames refer to.
        return getattr(error, "_agreed_by", None) is self

    def _agreed(self, error: Error) -> Error:
        error._agreed_by = self
        return error

    def leave(self, error: BaseException) -> None:
        """Closes the connections, unless all ranks have agreed on the error. Ranks that wait for
        this rank fail immediately, and so does what this rank calls later, with the error."""
        if self.communicator is None or self.has_agreed_on(error):
            return
        text, name = str(error), type(error).__name__
        why = text if isinstance(error, Error) else f"{name}: {text}" if text else name
        if self._notes is not None:
            self._notes.leave(self.rank, why)
        self.communicator.leave(why)

    def connected_again(self) -> Ranks:
        """The same ranks with new connections, for calls at the same time. Collective. Raises
        Unavailable if a rank does not connect in time."""
        old = self.communicator
        new = old and connect_ranks(
            self.rank, self.world_size, old.all_gather, _master_host(), self.timeout
        )
        return Ranks(new, self._numbers, self.device, self.timeout)

    def over_nccl(self, devices: Iterable[int], have_devices: bool, wanted: Any = None) -> bool:
        """Whether the tensors of a call, which are on ``devices`` on this rank, are sent over NCCL.

        Collective, and equal on all ranks. The first call with tensors on devices connects the
        ranks.

        Args:
            have_devices: whether any rank has such a tensor; equal on all ranks (see
                ``run_together_with_devices``).
            wanted: the device that the call names, if any.

        Raises Invalid on all ranks if ``CAIRN_NCCL`` requires what is not available, or is not a
        mode.
        """
        if self.communicator is None or not have_devices:
            return False
        if self._has_nccl is None:
            self._choose_transport(sorted(devices), wanted)
        return bool(self._has_nccl)

    def _choose_transport(self, devices: list[int], wanted: Any) -> None:
        from cairn._ranks import nccl

        device = -1

        def own() -> tuple[Any, ...]:
            nonlocal device
            mode = nccl.mode()
            objection = nccl.objection(self._nccl_objection)
            if objection is None:
                try:
                    device = nccl.device_for(devices, self._bound_device, wanted)
                except Exception as error:  # torch without CUDA, or after a fork
                    objection = nccl.Objection(f"torch has no current device: {error}", False)
            return mode, objection

        replies = self.exchange_values(own)
        found = [(rank, *one) for rank, (_, one) in enumerate(replies) if one is not None]
        is_chosen = any(chosen for _, _, chosen in found)
        problem = f"rank {found[0][0]}: {found[0][1]}" if found else self._connect_nccl(device)
        if problem is None:
            self._has_nccl = True
            return

        def refuse() -> None:
            if any(mode == "on" for mode, _ in replies):
                raise Invalid(
                    f"{nccl.VARIABLE}=on, but NCCL is not available on all ranks: {problem}"
                )

        self.run_together(refuse)
        self._has_nccl = False
        self.transport = f"host memory: {problem}"
        if not is_chosen and self.rank == 0:
            self._warning = (
                f"tensors on devices are sent between ranks through host memory: {problem}"
                f" ({nccl.VARIABLE}=off silences this warning)"
            )

    def warn(self) -> None:
        """Issues the warning of this rank's last call, if any.

        To be called at the end of the public function, because a filter may turn the warning into
        an exception, which must not occur during a collective call.
        """
        text, self._warning = self._warning, None
        if text is not None:
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def warn_of_contents(self, text: str) -> None:
        """The warning of rank 0 that ranks hold different data. Called on all ranks."""
        if self.rank == 0:
            self._warning = text

    def _connect_nccl(self, device: int) -> str | None:
        """Why the connection failed, equal on all ranks; None if the ranks are connected."""
        from cairn._ranks import nccl

        problem: Error | None = None
        try:
            self.communicator.connect_devices(device, min(self.timeout, nccl.CONNECT_TIMEOUT))
            self.transport = f"NCCL {_cairn.describe_nccl()}, from device {device}"
        except Error as error:
            problem = error
        # Raises if the connections between the ranks themselves have failed.
        try:
            self.exchange(lambda: b"")
        except Error as broken:
            if problem is not None:
                raise problem from broken
            raise
        return None if problem is None else str(problem)

    def disconnect_nccl(self) -> None:
        """Releases what NCCL holds on the device. These ranks must not make further calls."""
        if self._has_nccl:
            self._has_nccl = None
            self.communicator.disconnect_devices()

    def _exchange(self, work: Callable[[], bytes]) -> list[bytes]:
        failure: Exception | None = None
        try:
            message = _OK + work()
        except Exception as error:
            failure = error
            message = _FAILED + _encode(error)
        try:
            reports = self._send(lambda: self.communicator.all_gather(message))
        except Error as broken:
            if failure is not None:
                raise failure from broken
            raise
        if failure is None:
            failed = (rank for rank, report in enumerate(reports) if report[:1] == _FAILED)
            first = next(failed, None)
            failure = None if first is None else _decode(first, reports[first][1:])
        if failure is not None:
            raise self._agreed(failure)
        return [report[1:] for report in reports]

    def _send(self, transfer: Callable[[], list[T]], call: str = "") -> list[T]:
        """What `transfer()` returns. If it fails, the error names the ranks that have not begun
        `call`, or what the rank has stated that left first."""
        try:
            return transfer()
        except Unavailable as error:
            absent = re.search(r" \((ranks? [^()]*) not made this call\)", str(error))
            if absent is None:
                cause = None if self._notes is None else self._notes.find()
                if cause is None:
                    raise
                raise Unavailable(f"{cause} ({error})") from error
            if not call:
                raise
            raise Unavailable(
                f"{absent[1]} not called {call} within {self.arrival:g} s of rank {self.rank}: all "
                "ranks make the same calls in the same order, and arrival= of cairn.open gives "
                "them more time"
            ) from error

    def run_together(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work()`` after it has succeeded on every rank. Collective.

        If it raises on one rank, every rank raises, as in ``exchange``.
        """
        return self.run_and_exchange(lambda: (work(), None))[0]

    def run_together_with_devices(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Returns the result of ``run_together(work)``, and whether the result of any rank has
        tensors on devices (``devices()``). Collective."""

        def run() -> tuple[T, bool]:
            result = work()
            return result, bool(result.devices())  # type: ignore[attr-defined]

        result, replies = self.run_and_exchange(run)
        return result, any(replies)


def _encode(error: Exception) -> bytes:
    import json

    known = isinstance(error, Error)
    parts = {
        "type": type(error).__name__ if known else "Unavailable",
        "text": str(error) if known else f"{type(error).__name__}: {error}",
        "place": {
            name: getattr(error, name, None) if known else None
            for name in ("key", "step", "file", "offset")
        },
    }
    return json.dumps(parts).encode("utf-8", "surrogatepass")


def _decode(rank: int, report: bytes) -> Error:
    import json

    parts = json.loads(report.decode("utf-8", "surrogatepass"))
    error_type = getattr(errors, parts["type"], Unavailable)
    return error_type(f"rank {rank}: {parts['text']}", **parts["place"])


def default_group() -> ProcessGroup | None:
    """torch's default process group, if there is one."""
    dist = _distributed()
    return dist.group.WORLD if dist is not None and dist.is_initialized() else None


def _distributed() -> Any:
    # If torch.distributed has not been imported, no group can exist.
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() else None


def this_process(timeout: float) -> Ranks:
    """The single rank of a store that only this process uses."""
    group = default_group()
    numbers = {} if group is None else {_distributed().get_rank(): 0}
    return Ranks(None, numbers, None, timeout)


def ranks_of(group: ProcessGroup, timeout: float) -> Ranks:
    """The ranks of a process group, with new connections. Collective over the group.

    Raises Invalid if this process is not in the group, Unavailable if a rank does not connect in
    time.
    """
    dist = _distributed()
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise Invalid("this process is not in the process group: open the store with alone=True")
    numbers = {member: i for i, member in enumerate(dist.get_process_group_ranks(group))}
    device = _default_device(group)
    if world_size == 1:
        return Ranks(None, numbers, device, timeout)
    notes = await_all_ranks(group, timeout)
    communicator = connect(group, timeout)
    from cairn._ranks import nccl

    objection, bound = nccl.objection_of_group(group), nccl.bound_device(group)
    return Ranks(communicator, numbers, device, timeout, objection, bound, notes)


def choose_ranks(process_group: ProcessGroup | Ranks | None, alone: bool, timeout: float) -> Ranks:
    """The ranks that open a store together, as the caller of `cairn.open` asks. Raises Invalid.

    ``process_group``: of torch; or the ranks themselves, which a front end of another library has
    connected.
    """
    if isinstance(process_group, Ranks):
        return process_group
    if alone and process_group is not None:
        raise Invalid("give process_group or alone=True, not both")
    group = default_group() if process_group is None else process_group
    return this_process(timeout) if alone or group is None else ranks_of(group, timeout)


def connect(group: ProcessGroup, timeout: float) -> _cairn.Communicator:
    """A communicator over the ranks of a process group. Collective over the group.

    The ranks exchange their addresses with the object collectives of the group, which work on every
    backend. They listen on the interface ``GLOO_SOCKET_IFNAME``; by default on the loopback
    interface if they are all on this host, and otherwise on the interface with the route to
    ``MASTER_ADDR``.
    """
    dist = _distributed()
    world_size = dist.get_world_size(group)

    def all_gather(message: bytes) -> list[bytes]:
        messages: list[Any] = [None] * world_size
        dist.all_gather_object(messages, message, group=group)
        return messages

    return connect_ranks(dist.get_rank(group), world_size, all_gather, _master_host(), timeout)


def connect_ranks(
    rank: int,
    world_size: int,
    all_gather: Callable[[bytes], list[bytes]],
    route_to: str,
    timeout: float,
) -> _cairn.Communicator:
    """A communicator over ranks that can already exchange messages, with ``all_gather``.
    Collective.

    The interface is chosen as for `connect`, with the route to the host ``route_to``; empty: the
    address that the host's name resolves to.
    """
    import zlib

    is_one_host = len(set(all_gather(_this_host()))) == 1
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return _cairn.Communicator(
        rank=rank,
        world_size=world_size,
        # Messages of many ranks are long, but mostly zeros.
        all_gather=lambda mine: [*map(zlib.decompress, all_gather(zlib.compress(mine, 1)))],
        interface=interface or ("127.0.0.1" if is_one_host else ""),
        route_to=route_to,
        connect_timeout=min(timeout, 300.0),
        timeout=timeout,
    )


def _default_device(group: ProcessGroup) -> Any:
    """Host memory if the group supports it, otherwise its current device, as in DCP."""
    import torch

    types = {str(device.type) for device in group._device_types}
    if not types or "cpu" in types:
        return torch.device("cpu")
    module = getattr(torch, sorted(types)[0])
    return torch.device(sorted(types)[0], module.current_device())


def _this_host() -> bytes:
    """An identifier that is equal for processes that share a loopback interface."""
    import socket

    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}".encode()


def _master_host() -> str:
    """The host at which torch's ranks met; empty if they met elsewhere."""
    return os.environ.get("MASTER_ADDR", "").strip("[]")
