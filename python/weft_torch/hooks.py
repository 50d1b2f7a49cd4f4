"""Gradient codecs as communication hooks of DistributedDataParallel.

    codec = weft_torch.Codec("powersgd:4,warmup=100")
    model.register_comm_hook(codec, weft_torch.codec_hook)

Each rank saves its own state:

    torch.save({"model": model.state_dict(), "codec": codec.state_dict()}, f"checkpoint-{rank}.pt")
"""

from typing import Any

import torch
import torch.distributed as dist

from . import _C, group_options, make_options, regrouping


def _own_backend(group: dist.ProcessGroup) -> dist.Backend:
    """A backend with the ranks of the group, for collectives of one codec. It is not a group of
    torch: torch numbers its groups, and only members of this one would count it. Later groups would
    then have different names on other ranks."""
    store = regrouping.own_store(dist.distributed_c10d._get_process_group_store(group))
    number = store.add(f"codecs/{group.rank()}", 1)  # the same on all ranks of the group
    store = dist.PrefixStore(f"codec/{number}", store)
    if (backend := regrouping.weft_backend(group)) is not None:
        return _C.duplicate(backend, store)
    how = make_options(group_options(), dist.default_pg_timeout, store)
    how.job_ranks = regrouping.job_ranks(dist.get_process_group_ranks(group))
    return _C.make_backend(store, group.rank(), group.size(), how)


class Codec:
    """Compresses one model's gradients. Keeps this rank's error feedback between steps.

    `spec` names the codec: "bf16", "f16", "int8:64" and "int4:64" (blocks of 64 share a
    scale), "sign:1024", "topk:0.01", "randomk:0.01", "threshold:0.001", "powersgd:4"; with options
    "ef=off" (no error feedback, which biased codecs have), "delta", "stochastic", "warmup=N",
    "seed=N". Gradients must be float32 on the CPU. Each model needs its own Codec. All ranks of
    `group` must create it together, since it connects them once more. The first average of each
    bucket is not compressed, since DDP regroups its buckets after the first step."""

    def __init__(self, spec: str, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ValueError(
                f'weft_torch.Codec("{spec}") needs the ranks: call '
                f'torch.distributed.init_process_group first'
            )
        group = group or dist.group.WORLD
        # Not the group itself, which ends when torch drops it.
        self._rank, self._size = group.rank(), group.size()
        self._hook = _C.CodecHook(_own_backend(group), spec)

    @property
    def spec(self) -> str:
        """The spec in full, with every option of the codec."""
        return self._hook.spec

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state as tensors and numbers. Call it between steps. There is no
        state before the second step."""
        buckets = {
            index: {"step": saved.step, "count": saved.count, "memory": saved.memory}
            for index, saved in self._hook.state().items()
        }
        return {
            "spec": self.spec,
            "world": self._size,
            "rank": self._rank,
            "buckets": buckets,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state, which is used from the second step after this call. All ranks must load
        those that were saved together; otherwise that step fails on all ranks. Throws ValueError if
        the state belongs to another codec, rank or number of ranks."""
        for what, mine in (
            ("spec", self.spec),
            ("world", self._size),
            ("rank", self._rank),
        ):
            if state[what] != mine:
                raise ValueError(
                    f"this codec's {what} is {mine}, but the state's is {state[what]}: the state "
                    f"belongs to another job or another rank"
                )
        self._hook.load(
            {
                index: _C.SavedBucket(saved["step"], saved["count"], saved["memory"])
                for index, saved in state["buckets"].items()
            }
        )


def codec_hook(state: Codec, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for DistributedDataParallel.register_comm_hook(Codec(...), codec_hook). Averages the
    bucket over the ranks, compressed by the codec."""
    done = state._hook.average(bucket.index(), bucket.buffer(), bucket.gradients()).get_future()
    # DDP needs a future that was completed by Python.
    return done.then(lambda average: average.value())
