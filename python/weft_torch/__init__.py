"""weft's communication under torch.distributed.

    import weft_torch
    torch.distributed.init_process_group("weft")              # or "cpu:weft,cuda:nccl"

Everything above stays as it is: DDP, FSDP2, DTensor, pipelining, torchrun. Ranks of one host read
each other's tensors in place; others speak TCP. Errors are `weft_torch.Error`, whose `code` says
what to do and whose `peer` says who was lost."""

import dataclasses
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def _load():
    """The compiled part, which c10d's C++ interface ties to one minor version of torch: asked
    before it is loaded, or the linker would answer."""
    try:
        from ._built import TORCH
    except ImportError:
        raise ImportError(
            "weft_torch has not been compiled: install it (pip install ./python), or take "
            "PYTHONPATH=build/release/python"
        ) from None
    built, here = (version.split("+")[0].split(".")[:2] for version in (TORCH, torch.__version__))
    if built != here:
        raise ImportError(
            f"weft-torch was built for torch {'.'.join(built)}.* and this is torch "
            f"{torch.__version__}: "
            f"install weft-torch again from source, or torch=={'.'.join(built)}.*"
        )
    try:
        from . import _C
    except ImportError as error:
        why = str(error).splitlines()[0]
        raise ImportError(
            f"weft-torch was built beside another torch {TORCH} than this one: install it again "
            f"from source ({why})"
        ) from None
    return _C


_C = _load()


class Error(dist.DistBackendError):
    """`code`: InvalidArgument, Timeout, PeerLost, Aborted, Unavailable, BadConfig or Internal.
    `operation`; `rank` saw it; `peer`: at fault, or -1."""

    code: str
    operation: str
    rank: int
    peer: int


@dataclasses.dataclass
class Options:
    """For init_process_group(pg_options=...) and new_group(pg_options=...); what is left empty
    comes from the environment."""

    # "auto", "shm" or "tcp"; WEFT_TRANSPORT.
    transport: str = ""
    # The address that TCP listens on; WEFT_INTERFACE. Default: the one that leads to the master,
    # 127.0.0.1 on one host.
    interface: str = ""
    # False leaves torch's CPU allocator alone: tensors are then copied into shared memory and out
    # of it.
    shared_allocator: bool = True


def _job_secret() -> bytes:
    """The launcher (`weft run`) hands it over as an open file; read by position, since several
    groups read it."""
    fd = os.environ.get("WEFT_SECRET_FD")
    return os.pread(int(fd), 32, 0) if fd else b""


def _create(where: Any, options: Any) -> Any:
    options = options if isinstance(options, Options) else Options()
    if options.shared_allocator:
        _C.share_memory()
    how = _C.BackendOptions()
    how.transport = options.transport or os.environ.get("WEFT_TRANSPORT") or "auto"
    how.interface = options.interface or os.environ.get("WEFT_INTERFACE", "")
    how.store_host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    how.secret = _job_secret()
    how.timeout = where.timeout
    return _C.make_backend(where.store, where.group_rank, where.group_size, how)


dist.Backend.register_backend("weft", _create, extended_api=True, devices=["cpu"])


_torch_monitored_barrier = dist.monitored_barrier


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """dist.monitored_barrier, which torch has for Gloo by name only, for weft's groups too: rank 0
    names the ranks that did not come."""
    if dist.get_rank(group) < 0 or dist.get_backend(group) != "weft":
        return _torch_monitored_barrier(group, timeout, wait_all_ranks)
    group = group or dist.group.WORLD
    timeout = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    return group.monitored_barrier(
        *([timeout] if timeout is not None else []), wait_all_ranks=wait_all_ranks
    )


dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether the ranks of this host can read the tensor where it is."""
    return _C.is_shared(tensor)


def heap_stats() -> dict[str, int]:
    """Bytes of this process's shared memory: live_bytes, peak_bytes, footprint_bytes, limit_bytes;
    and its number of allocations."""
    return _C.heap_stats()


from .hooks import Codec, codec_hook  # noqa: E402

__all__ = [
    "Codec", "Error", "Options", "codec_hook", "heap_stats", "is_shared", "monitored_barrier"
]
