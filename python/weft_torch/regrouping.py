"""Training that goes on after the loss of a rank: the default group forms again, with a new process
in place of the lost one, or with fewer ranks.

    group = weft_torch.init_process_group()
    while True:
        try:
            if group.source is not None:      # others have a state, this process may have none
                load(weft_torch.copy_state(state(), group.source))
            model = DistributedDataParallel(module)
            ...                               # train to the end
            break
        except RuntimeError as error:
            if not weft_torch.is_loss(error):
                raise
            del model                         # it belongs to the old group
            group = weft_torch.regroup()

python/examples/elastic_ddp.py is a whole program."""

import dataclasses
import os
import re
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import _C

# Errors of a rank that ended because of another one, as weft_torch.Error and in the text of the
# RuntimeError that backward() makes of it. The text of a timeout names the late rank in braces.
_LOSSES = ("PeerLost", "Aborted")
_LOSS_TEXT = re.compile(
    r"^(\[weft\] )?(PeerLost\b|Aborted\b|(Timed out waiting: )?Timeout\{\d+\})"
)

_JOIN_LIMIT = timedelta(seconds=30)  # as weft/elastic/recovery.cc


@dataclasses.dataclass
class Regrouped:
    """A default group that has formed."""

    rank: int
    world_size: int
    # Ranks of the processes that have joined and have no state.
    newcomers: list[int]
    # The lowest rank that has the state of the job. None: the job has just started.
    source: int | None


@dataclasses.dataclass
class _World:
    """What outlives the default group, for the next one."""

    regroup_data: Any
    store: dist.Store
    options: Any  # of init_process_group()
    timeout: timedelta
    backend: str = "weft"  # the name that init_process_group() got


_world: _World | None = None
_formed: Any = None  # a backend that init_process_group() shall use
_number = "0"  # of the default group on its store, the same on all ranks
_reconfigurable = 0  # groups of this process that reconfigure() forms


def _base(store: dist.Store) -> dist.Store:
    """The store without prefixes."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def weft_backend(group: dist.ProcessGroup) -> Any:
    """weft's backend of the group's CPU tensors, also in a group like "cpu:weft,cuda:nccl". None:
    another backend has them."""
    cpu = torch.device("cpu")
    if cpu not in group._device_types:
        return None
    backend = group._get_backend(cpu)
    while hasattr(backend, "wrapped_pg"):  # by TORCH_DISTRIBUTED_DEBUG=DETAIL
        backend = backend.wrapped_pg
    return backend if backend.name() == "weft" else None


def job_ranks(ranks: list[int]) -> list[int]:
    """The ranks in the job of some ranks of the default group. Empty: they are 0, 1, …"""
    backend = weft_backend(dist.group.WORLD)
    of_default = [] if backend is None else _C.job_ranks_of(backend)
    of_job = [of_default[rank] for rank in ranks] if of_default else list(ranks)
    return [] if of_job == list(range(len(of_job))) else of_job


def _is_under_torchrun() -> bool:
    """torchrun counts the restarts of each node separately. weft's launcher, which has the same
    variables, has one count for all ranks."""
    return bool(os.environ.get("TORCHELASTIC_RUN_ID")) and not os.environ.get("WEFT_LAUNCHER_PID")


def _attempt() -> str:
    """The number of the attempt by weft's launcher, which keeps its store when it starts the ranks
    again."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"


def _store_and_epoch(base: dist.Store, number: str) -> tuple[dist.Store, int]:
    """Where the ranks of a world form their group again, and the first epoch. The launcher writes
    there which ranks are gone (comm::gone_ranks_key). Worlds that one job makes one after another
    have different epochs."""
    run = os.environ.get("TORCHELASTIC_RUN_ID") or "none"
    attempt = f"torchrun/{number}" if _is_under_torchrun() else _attempt()
    return dist.PrefixStore(f"weft/{run}/{attempt}", base), int(number) << 16


def _wait_for(store: dist.Store, key: str, limit: timedelta) -> str:
    end = time.monotonic() + limit.total_seconds()
    while not store.check([key]):
        if time.monotonic() > end:
            raise TimeoutError(
                f"the ranks of the job have not met within {limit}: there is nothing to join"
            )
        time.sleep(0.01)
    return store.get(key).decode()


def _of_attempt(store: dist.Store) -> dist.Store:
    """The part of the store where the ranks of one attempt number their groups. Under torchrun it
    serves all attempts: each default group has a new number there, and reconfigure() uses handles
    that no other process has."""
    return dist.PrefixStore(f"weft/{'torchrun' if _is_under_torchrun() else _attempt()}", store)


def begin_default(store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
    """Numbers the default group that this rank is about to form. The number is agreed through the
    store, since its processes may have had different groups before: it is that of the first group
    that has not formed yet and that this rank has not tried to form. Under torchrun it is a new
    one, and the call waits for the other ranks."""
    global _number
    shared = _of_attempt(store)
    if _is_under_torchrun():
        _number = str(_C.agree_on_attempt(shared, rank, size, timeout))
        return
    _number = shared.compare_set("number", "", "0").decode()
    while shared.add(f"came/{_number}/{rank}", 1) > 1:  # that attempt has failed
        _next_number(shared)


def _next_number(shared: dist.Store) -> None:
    global _number
    _number = shared.compare_set("number", _number, str(int(_number) + 1)).decode()


def end_default(store: dist.Store) -> None:
    """The default group has formed: its ranks, and others, form the next one under a new number."""
    if not _is_under_torchrun():
        shared = _of_attempt(store)
        shared.compare_set("number", _number, str(int(_number) + 1))


def begin_reconfigurable() -> None:
    """Its processes form groups without a common call, so each counts its own."""
    global _number, _reconfigurable, _world
    _world = None  # reconfigure() forms such a group again
    _reconfigurable += 1
    _number = f"reconfigurable/{_reconfigurable}"


def own_store(store: dist.Store) -> dist.Store:
    """The part of a group's store that no earlier group of the same name has used: the default
    group may be made several times on one store."""
    return dist.PrefixStore(_number, _of_attempt(store))


def take_formed() -> Any:
    """What regroup() has made for the default group, once."""
    global _formed, _number
    formed, _formed = _formed, None
    if formed is not None:
        _number = str(formed.epoch)
    return formed


def remember(backend: Any, store: dist.Store, how: Any, options: Any) -> None:
    """Keeps what the first default group needs to form again. `store`: where its ranks have met."""
    global _world
    _world = None
    if backend.size() == 1:
        return
    base = _base(store)
    if backend.rank() == 0:
        number = str(base.add("weft_torch/worlds", 1))
        base.set("weft_torch/world", number)
        store.set("world", number)
    own, how.epoch = _store_and_epoch(base, store.get("world").decode())
    _world = _World(_C.regroupable(backend, own, how), own, options, how.timeout)


def is_newcomer() -> bool:
    """Whether the launcher has started this process in place of a lost rank, and it has not joined
    the others yet."""
    return bool(os.environ.get("WEFT_NEWCOMER"))


def is_loss(error: BaseException) -> bool:
    """Whether this rank ended with the error because another rank is lost. backward() turns weft's
    errors into a RuntimeError with the same text, which is recognized too."""
    code = getattr(error, "code", None)
    if isinstance(code, str):
        return code in _LOSSES or (code == "Timeout" and getattr(error, "peer", -1) >= 0)
    return isinstance(error, RuntimeError) and bool(_LOSS_TEXT.match(str(error)))


def _from_launcher(name: str) -> int:
    return int(os.environ.get(name) or 0)


def _enter(formed: Any) -> Regrouped:
    """Makes the formed group the default group of torch.distributed."""
    global _formed
    assert _world is not None
    _world.regroup_data, _formed = formed.regroup_data, formed
    try:
        dist.init_process_group(
            _world.backend, store=dist.PrefixStore(f"epoch/{formed.epoch}", _world.store),
            rank=formed.rank, world_size=formed.size, timeout=_world.timeout,
            pg_options=_world.options
        )
    finally:
        _formed = None
    newcomers = [rank for rank, former in enumerate(formed.former) if former < 0]
    source = next((rank for rank in range(formed.size) if rank not in newcomers), None)
    return Regrouped(formed.rank, formed.size, newcomers, source)


def init_process_group(
    backend: str = "weft", timeout: timedelta | None = None, pg_options: Any = None, **more: Any
) -> Regrouped:
    """As dist.init_process_group(). In a process that replaces a lost rank (`weft run
    --max-replacements`), joins the running job instead: the other ranks must call regroup().

    Raises weft_torch.Error BadConfig with the difference if this process runs another version of
    weft or torch, or differs in Options.alike."""
    global _world
    from . import default_options, make_options

    if not is_newcomer():
        limit = {"timeout": timeout} if timeout else {}
        dist.init_process_group(backend, pg_options=pg_options, **limit, **more)
        return Regrouped(dist.get_rank(), dist.get_world_size(), [], None)
    wait = timeout or timedelta(minutes=5)
    rank = int(os.environ["RANK"])
    found, _, _ = next(dist.rendezvous("env://", rank, int(os.environ["WORLD_SIZE"]), timeout=wait))
    base = _base(found)
    how = make_options(default_options(pg_options), timeout or dist.default_pg_timeout, base)
    store, how.epoch = _store_and_epoch(base, _wait_for(base, "weft_torch/world", wait))
    _C.tell_launcher("joining")
    formed = _C.join(store, how, wait, rank)
    _C.tell_launcher("joined")
    del os.environ["WEFT_NEWCOMER"]
    limit = timeout or dist.default_pg_timeout
    _world = _World(formed.regroup_data, store, pg_options, limit, backend)
    return _enter(formed)


def regroup(
    min_ranks: int | None = None, wait: timedelta = _JOIN_LIMIT,
    timeout: timedelta = timedelta(minutes=5)
) -> Regrouped:
    """Forms the default group again after the loss of a rank, on all ranks that are left. Destroys
    the old group and all groups made from it; drop what uses them (DistributedDataParallel) first.

    Under `weft run --max-replacements`, waits for the process that replaces the lost rank, which
    calls init_process_group(); each rank keeps its number. With `--min-ranks`, or without weft's
    launcher, goes on with the ranks that are left; they keep their order. `min_ranks`: fewer are an
    error. `wait`: how long to wait for ranks that are not known to be dead.

    Raises weft_torch.Error: Timeout if too few ranks come, Aborted if the others went on without
    this rank, PeerLost if the store is gone (with torchrun and weft run, the launcher has it).
    Raises ValueError if there is no default group of the weft backend."""
    backend = weft_backend(dist.group.WORLD) if dist.is_initialized() else None
    if _world is None or backend is None:
        raise ValueError(
            "there is no group to form again: call weft_torch.init_process_group() with at least "
            "two ranks first"
        )
    size = dist.get_world_size()
    least = _from_launcher("WEFT_MIN_RANKS")
    launched = _from_launcher("WEFT_ELASTIC") > 0
    options = _C.RegroupOptions()
    options.size = size if launched else 0
    options.keep_ranks = launched
    options.at_least = min_ranks or least or (size if launched else 1)
    options.wait, options.timeout = wait, timeout
    _world.backend = dist.get_backend()
    formed = _C.regroup(backend, _world.regroup_data, options)
    del backend
    dist.destroy_process_group()
    return _enter(formed)
