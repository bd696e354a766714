"""The processes that use a store together: ranks of a torch process group, connected by Cairn.

The process group is asked once, to tell all ranks where rank 0 listens; from then on they talk over
the C++ communicator, whose every call has a deadline and fails at once when a peer dies. Tensors on
devices go over NCCL beside it, where all ranks have it (cairn/nccl.py).
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cairn import _cairn, errors
from cairn._ranks import nccl
from cairn.errors import Error, Invalid, Unavailable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class HasDevices(Protocol):
    """What says on which devices its tensors lie."""

    def devices(self) -> Collection[int]: ...


D = TypeVar("D", bound=HasDevices)

_OK, _FAILED = b"\0", b"\1"


class Ranks:
    """This process alone, or among those that make the same calls in the same order.

    Threads: one at a time makes collective calls (``exchange``, ``run_together``).
    """

    def __init__(
        self,
        communicator: _cairn.Communicator | None,
        numbers: dict[int, int],
        device: Any,
        timeout: float,
        nccl_objection: str | None = None,
        bound_device: int | None = None,
    ) -> None:
        """``nccl_objection``: why NCCL is not to be used unless it is asked for; ``bound_device``:
        that of the process group."""
        self.communicator = communicator
        """None for this process alone."""
        self._numbers = numbers
        """The rank here of each rank of torch's default group that is one of us."""
        self.device = device
        """Where torch puts what it makes for the group; None for this process alone."""
        self.timeout = timeout
        """Seconds that ranks wait for each other."""
        self._nccl_objection = nccl_objection
        self._bound_device = bound_device
        self._warning: str | None = None
        self._has_nccl: bool | None = None
        """None until a call has tensors on devices; then the same on all ranks."""
        self.transport = (
            "none: this process is alone"
            if communicator is None
            else "host memory; NCCL is looked for when a call has tensors on devices"
        )
        """What tensors on devices go over between ranks, and why."""

    @property
    def rank(self) -> int:
        return 0 if self.communicator is None else self.communicator.rank

    @property
    def world_size(self) -> int:
        return 1 if self.communicator is None else self.communicator.world_size

    def numbers_of(self, global_ranks: list[int]) -> list[int] | None:
        """The ranks here of ranks as a device mesh names them; None if one of them is not here."""
        if self.communicator is None:
            return self._alone(global_ranks)
        numbers = [self._numbers.get(rank) for rank in global_ranks]
        return None if None in numbers else numbers

    def _alone(self, global_ranks: list[int]) -> list[int]:
        # This process is rank 0 here, whoever it is elsewhere; the others only need to differ.
        local_rank = next(iter(self._numbers), 0)
        return [{local_rank: 0, 0: local_rank}.get(rank, rank) for rank in global_ranks]

    def exchange(self, work: Callable[[], bytes]) -> list[bytes]:
        """What ``work()`` gives on each rank, in their order. Collective.

        If it raises on one of them, every rank raises: that one its own exception, the others one
        that names it. An exception that the others do not know of (Ctrl-C, a broken connection)
        ends the connections, so that they fail at once.
        """
        if self.communicator is None:
            return [work()]
        try:
            return self._exchange(work)
        except BaseException as error:
            if not self.has_agreed_on(error):
                self.communicator.leave()
            raise

    def has_agreed_on(self, error: BaseException) -> bool:
        """True for what an exchange has raised on every rank: they can go on together."""
        # Noted at the error, as one that is kept would keep alive all that its frames hold.
        return getattr(error, "_agreed_by", None) is self

    def leave(self) -> None:
        """Ends the connections: the others fail at once where they wait for this rank."""
        if self.communicator is not None:
            self.communicator.leave()

    def over_nccl(self, devices: Iterable[int], have_devices: bool, wanted: Any = None) -> bool:
        """Whether the tensors of a call, which here lie on ``devices``, go over NCCL. Collective,
        with one answer for all ranks; the first call that has any such tensor connects them.

        Args:
            have_devices: whether any rank has such a tensor, which all have been told
                (``run_together_with_devices``).
            wanted: the device that the call names, if it names one.

        Raises Invalid on all ranks if ``CAIRN_NCCL`` asks for what cannot be had, or is no mode.
        """
        if self.communicator is None or not have_devices:
            return False
        if self._has_nccl is None:
            self._choose_transport(sorted(devices), wanted)
        return bool(self._has_nccl)

    def _choose_transport(self, devices: list[int], wanted: Any) -> None:
        device = -1

        def encode_local() -> bytes:
            nonlocal device
            mode = nccl.mode()
            objection = nccl.objection(self._nccl_objection)
            if objection is None:
                try:
                    device = nccl.device_for(devices, self._bound_device, wanted)
                except Exception as error:  # torch without CUDA, or after a fork
                    objection = nccl.Objection(f"torch has no current device: {error}", False)
            return json.dumps([mode, objection]).encode()

        replies = [json.loads(one) for one in self.exchange(encode_local)]
        found = [(rank, *one) for rank, (_, one) in enumerate(replies) if one is not None]
        is_chosen = any(chosen for _, _, chosen in found)
        problem = f"rank {found[0][0]}: {found[0][1]}" if found else self._connect_nccl(device)
        if problem is None:
            self._has_nccl = True
            return

        def refuse() -> None:
            if any(mode == "on" for mode, _ in replies):
                raise Invalid(f"{nccl.VARIABLE}=on, but there is no NCCL for all ranks: {problem}")

        self.run_together(refuse)
        self._has_nccl = False
        self.transport = f"host memory: {problem}"
        if not is_chosen and self.rank == 0:
            self._warning = (
                f"tensors on devices go between ranks through host memory: {problem}"
                f" ({nccl.VARIABLE}=off says that this is meant)"
            )

    def warn(self) -> None:
        """What the user is to know of this rank's last call, at the end of the public function that
        made it: a filter may make it an exception, which must not come between the ranks."""
        text, self._warning = self._warning, None
        if text is not None:
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _connect_nccl(self, device: int) -> str | None:
        """What went wrong, which is the same on all ranks; None if they are connected."""
        problem: Error | None = None
        try:
            self.communicator.connect_devices(device, min(self.timeout, nccl.CONNECT_TIMEOUT))
            self.transport = f"NCCL {_cairn.describe_nccl()}, from device {device}"
        except Error as error:
            problem = error
        # Raises where it was the connections that failed.
        try:
            self.exchange(lambda: b"")
        except Error as broken:
            if problem is not None:
                raise problem from broken
            raise
        return None if problem is None else str(problem)

    def disconnect_nccl(self) -> None:
        """Gives back what NCCL takes on the device, once these ranks make no more calls."""
        if self._has_nccl:
            self._has_nccl = None
            self.communicator.disconnect_devices()

    def _exchange(self, work: Callable[[], bytes]) -> list[bytes]:
        failure: Exception | None = None
        message = b""
        try:
            message = _OK + work()
        except Exception as error:
            failure = error
            message = _FAILED + _encode(error)
        try:
            reports = self.communicator.all_gather(message)
        except Error as broken:
            if failure is not None:
                raise failure from broken
            raise
        if failure is None:
            failed = (rank for rank, report in enumerate(reports) if report[:1] == _FAILED)
            first = next(failed, None)
            failure = None if first is None else _decode(first, reports[first][1:])
        if failure is not None:
            failure._agreed_by = self
            raise failure
        return [report[1:] for report in reports]

    def run_together(self, work: Callable[[], T]) -> T:
        """The result of ``work()`` once it has succeeded on every rank. Collective; raises as
        ``exchange``."""
        results = []

        def run() -> bytes:
            results.append(work())
            return b""

        self.exchange(run)
        return results[0]

    def run_together_with_devices(self, work: Callable[[], D]) -> tuple[D, bool]:
        """``run_together``, and whether any rank's result has tensors on devices."""
        results = []

        def run() -> bytes:
            results.append(work())
            return b"1" if results[0].devices() else b""

        replies = self.exchange(run)
        return results[0], any(replies)


def _encode(error: Exception) -> bytes:
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
    parts = json.loads(report.decode("utf-8", "surrogatepass"))
    error_type = getattr(errors, parts["type"], Unavailable)
    return error_type(f"rank {rank}: {parts['text']}", **parts["place"])


def default_group() -> ProcessGroup | None:
    """torch's default process group, if there is one."""
    dist = _distributed()
    return dist.group.WORLD if dist is not None and dist.is_initialized() else None


def _distributed() -> Any:
    # Without torch.distributed imported nobody can have made a group.
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() else None


def this_process(timeout: float) -> Ranks:
    """The ranks of a store that this process uses by itself."""
    group = default_group()
    numbers = {} if group is None else {_distributed().get_rank(): 0}
    return Ranks(None, numbers, None, timeout)


def ranks_of(group: ProcessGroup, timeout: float) -> Ranks:
    """The ranks of a process group, connected anew; each of them calls it.

    Raises Invalid if this process is none of them, Unavailable if a rank does not come in time.
    """
    dist = _distributed()
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise Invalid("this process is not of the process group: open the store with alone=True")
    numbers = {member: i for i, member in enumerate(dist.get_process_group_ranks(group))}
    device = _default_device(group)
    if world_size == 1:
        return Ranks(None, numbers, device, timeout)
    communicator = connect(group, timeout)
    objection, bound = nccl.objection_of_group(group), nccl.bound_device(group)
    return Ranks(communicator, numbers, device, timeout, objection, bound)


def choose_ranks(process_group: ProcessGroup | None, alone: bool, timeout: float) -> Ranks:
    """The ranks that open a store together, as the caller of `cairn.open` asks. Raises Invalid."""
    if alone and process_group is not None:
        raise Invalid("give process_group or alone=True, not both")
    group = default_group() if process_group is None else process_group
    return this_process(timeout) if alone or group is None else ranks_of(group, timeout)


def connect(group: ProcessGroup, timeout: float) -> _cairn.Communicator:
    """Cairn's communicator over the ranks of a process group. Collective over the group.

    Rank 0 chooses where to listen, and the group's own object collectives, which work on every
    backend, tell the others. Set ``GLOO_SOCKET_IFNAME`` to choose the network interface.
    """
    dist = _distributed()
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    hosts: list[Any] = [None] * world_size
    dist.all_gather_object(hosts, _this_host(), group=group)
    meeting: list[Any] = [None]
    if rank == 0:
        host = "127.0.0.1" if len(set(hosts)) == 1 else _reachable_host()
        meeting = [(f"tcp://{host}:{_free_port()}", uuid.uuid4().hex)]
    dist.broadcast_object_list(meeting, src=dist.get_global_rank(group, 0), group=group)
    rendezvous, run_id = meeting[0]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return _cairn.Communicator(
        rank, world_size, rendezvous, run_id, interface, min(timeout, 300.0), timeout
    )


def _default_device(group: ProcessGroup) -> Any:
    """As DCP: host memory where the group can do that, else the group's current device."""
    import torch

    types = {str(device.type) for device in group._device_types}
    if not types or "cpu" in types:
        return torch.device("cpu")
    module = getattr(torch, sorted(types)[0])
    return torch.device(sorted(types)[0], module.current_device())


def _this_host() -> tuple[str, str]:
    """Equal for processes that reach each other over the loopback."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def _reachable_host() -> str:
    """An address of this host that the other hosts of the job reach."""
    # The one that leads to where the job met; if that is this very host, the name that it has.
    master = os.environ.get("MASTER_ADDR", "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))
            address = probe.getsockname()[0]
    except OSError:
        address = ""
    if address and not address.startswith("127."):
        return address
    if master and master not in ("localhost", "127.0.0.1"):
        return master
    return socket.gethostname()


def _free_port() -> int:
    """A TCP port that nobody listens on now.

    Below those that systems hand out by themselves (from 32768 on Linux), so that no connection
    made meanwhile takes it.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise Unavailable("no free TCP port between 15000 and 32000 for the ranks to meet at")
