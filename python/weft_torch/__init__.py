"""weft's communication under torch.distributed.

    import weft_torch
    torch.distributed.init_process_group("weft")              # or "cpu:weft,cuda:nccl"

Everything above it works unchanged: DDP, FSDP2, DTensor, pipelining, torchrun. Ranks of one host
read each other's tensors in place; ranks of different hosts use TCP. Errors are
`weft_torch.Error`: `code` tells what happened, and `peer` which rank was lost."""

import dataclasses
import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def _load():
    """Loads the compiled part. It works with one minor version of torch only, because of c10d's C++
    interface. The version is checked first, since the linker's error would not name the reason."""
    try:
        from ._built import TORCH
    except ImportError:
        raise ImportError(
            "weft_torch has not been compiled: install it (pip install ./python), or set "
            "PYTHONPATH=build/release/python"
        ) from None
    built, here = (version.split("+")[0].split(".")[:2] for version in (TORCH, torch.__version__))
    if built != here:
        raise ImportError(
            f"weft-torch was built for torch {'.'.join(built)}.*, but this is torch "
            f"{torch.__version__}: "
            f"install weft-torch again from source, or torch=={'.'.join(built)}.*"
        )
    try:
        from . import _C
    except ImportError as error:
        why = str(error).splitlines()[0]
        raise ImportError(
            f"weft-torch was built with another build of torch {TORCH}: install it again "
            f"from source ({why})"
        ) from None
    return _C


_C = _load()


class Error(dist.DistBackendError):
    """An error of weft. `code` is InvalidArgument, Timeout, PeerLost, Aborted, Unavailable,
    BadConfig or Internal. `operation` is the operation that failed, `rank` the rank that reports
    the error, and `peer` the rank at fault, or -1: ranks of the job, also in groups of
    new_group()."""

    code: str
    operation: str
    rank: int
    peer: int


@dataclasses.dataclass
class Options:
    """Options for init_process_group(pg_options=...) and new_group(pg_options=...). An empty option
    is read from its environment variable."""

    # "auto", "shm" or "tcp". Environment: WEFT_TRANSPORT.
    transport: str = ""
    # The address that TCP listens on. Environment: WEFT_INTERFACE. Default: the address with the
    # route to the host of the store; 127.0.0.1 on one host.
    interface: str = ""
    # False: torch's CPU allocator is not replaced, and tensors are copied into shared memory and
    # back. The choice of the default group also counts for groups without options.
    shared_allocator: bool = True
    # Texts that must be equal on all ranks, by what they describe, such as {"model": repr(model)}.
    # A rank with other texts is refused with the difference.
    alike: dict[str, str] = dataclasses.field(default_factory=dict)

    # Not a field: DeviceMesh reads it in the options of its groups. None: the default timeout.
    _timeout = None


_shared_allocator = True  # the choice of the last default group


def default_options(given: Any) -> Options:
    """The options of a default group."""
    global _shared_allocator
    options = given if isinstance(given, Options) else Options()
    _shared_allocator = options.shared_allocator
    return options


def group_options(given: Any = None) -> Options:
    """The options of another group."""
    return given if isinstance(given, Options) else Options(shared_allocator=_shared_allocator)


def _job_secret() -> bytes:
    """Reads the job's secret from the open file that the launcher (`weft run`) passes. Uses pread,
    since several groups read it."""
    fd = os.environ.get("WEFT_SECRET_FD")
    return os.pread(int(fd), 32, 0) if fd else b""


# A longer timeout would be beyond the end of the clock. torch passes timedelta.max on as a negative
# one.
_LONGEST = timedelta(days=36500)


def _store_host(store: dist.Store) -> str:
    """The host of the store. The route to it leads to the other hosts."""
    base = regrouping._base(store)
    if isinstance(base, dist.TCPStore):
        return base.host
    return os.environ.get("MASTER_ADDR") or socket.gethostname()


def make_options(options: Options, timeout: timedelta, store: dist.Store) -> Any:
    """The options of the compiled part, for a group whose ranks meet over `store`."""
    if options.shared_allocator:
        _C.share_memory()
    how = _C.BackendOptions()
    how.transport = options.transport or os.environ.get("WEFT_TRANSPORT") or "auto"
    how.interface = options.interface or os.environ.get("WEFT_INTERFACE", "")
    how.store_host = _store_host(store)
    how.secret = _job_secret()
    how.timeout = timeout if abs(timeout) < _LONGEST else _LONGEST
    how.alike = options.alike
    return how


def _create(where: Any, options: Any) -> Any:
    """Makes the backend of a group, with what torch notes in its options."""
    backend = _form(where, options)
    backend.options.global_ranks_in_group = where.global_ranks_in_group
    backend.options.group_name = where.group_id
    return backend


def _form(where: Any, options: Any) -> Any:
    """The backend of the default group, which can form again, or of another one."""
    is_default = not where.global_ranks_in_group
    if is_default and (formed := regrouping.take_formed()) is not None:
        return formed.backend
    chosen = default_options(options) if is_default else group_options(options)
    how = make_options(chosen, where.timeout, where.store)
    if getattr(where, "enable_reconfigure", False):  # from torch 2.14 on
        regrouping.begin_reconfigurable()
        store = regrouping.own_store(where.store)
        return _C.make_reconfigurable_backend(store, where.group_rank, where.group_size, how)
    if is_default:
        regrouping.begin_default(where.store, where.group_rank, where.group_size, how.timeout)
    else:
        how.job_ranks = regrouping.job_ranks(where.global_ranks_in_group)
    store = regrouping.own_store(where.store)
    backend = _C.make_backend(store, where.group_rank, where.group_size, how)
    if is_default:
        regrouping.end_default(where.store)
        regrouping.remember(backend, store, how, options)
    return backend


dist.Backend.register_backend("weft", _create, extended_api=True, devices=["cpu"])


_torch_monitored_barrier = dist.monitored_barrier


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """dist.monitored_barrier for weft's groups too; that of torch 2.13 works for Gloo only. Rank
    0's error names the ranks that did not arrive."""
    if dist.get_rank(group) < 0 or regrouping.weft_backend(group or dist.group.WORLD) is None:
        return _torch_monitored_barrier(group, timeout, wait_all_ranks)
    group = group or dist.group.WORLD
    timeout = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    return group.monitored_barrier(
        *([timeout] if timeout is not None else []), wait_all_ranks=wait_all_ranks
    )


dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


if not hasattr(dist, "set_timeout"):  # torch 2.13 sets the timeout of Gloo's and NCCL's groups only
    _torch_set_pg_timeout = dist.distributed_c10d._set_pg_timeout

    def _set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        group = group or dist.distributed_c10d._get_default_group()
        backends = [group._get_backend(device) for device in group._device_types]
        for backend in backends:
            if backend.name() == "weft":
                backend._set_default_timeout(timeout)
        if any(backend.name() != "weft" for backend in backends):
            _torch_set_pg_timeout(timeout, group)

    dist.distributed_c10d._set_pg_timeout = _set_pg_timeout


_torch_sequence_number = dist.ProcessGroup._get_sequence_number_for_group


def _sequence_number(group: dist.ProcessGroup) -> int:
    """torch 2.13 knows the sequence numbers of its own backends only."""
    try:
        return _torch_sequence_number(group)
    except RuntimeError:
        if (backend := regrouping.weft_backend(group)) is None:
            raise
        return backend._get_sequence_number_for_group()


dist.ProcessGroup._get_sequence_number_for_group = _sequence_number


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether the other ranks of this host can read the tensor in place."""
    return _C.is_shared(tensor)


def heap_stats() -> dict[str, int]:
    """Statistics of this process's shared memory: live_bytes, peak_bytes, footprint_bytes,
    limit_bytes, and allocations, the number of allocations so far."""
    return _C.heap_stats()


from . import regrouping  # noqa: E402
from .hooks import Codec, codec_hook  # noqa: E402
from .parameter_server import ParameterServerClient  # noqa: E402
from .regrouping import (  # noqa: E402
    Regrouped,
    init_process_group,
    is_loss,
    is_newcomer,
    regroup,
)
from .state import copy_state  # noqa: E402

__all__ = [
    "Codec",
    "Error",
    "Options",
    "ParameterServerClient",
    "Regrouped",
    "codec_hook",
    "copy_state",
    "heap_stats",
    "init_process_group",
    "is_loss",
    "is_newcomer",
    "is_shared",
    "monitored_barrier",
    "regroup",
]
