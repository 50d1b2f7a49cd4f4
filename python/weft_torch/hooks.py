"""Gradient codecs as communication hooks of DistributedDataParallel.

    codec = weft_torch.Codec("powersgd:4,warmup=100")
    model.register_comm_hook(codec, weft_torch.codec_hook)

Each rank saves its own state:

    torch.save({"model": model.state_dict(), "codec": codec.state_dict()}, f"checkpoint-{rank}.pt")
"""

from typing import Any

import torch
import torch.distributed as dist

from . import _C


class Codec:
    """How one model's gradients become fewer bytes, and what this rank remembers of what it did not
    send.

    `spec` is weft's word for it: "bf16", "f16", "int8:64" and "int4:64" (blocks of 64 share a
    scale), "sign:1024", "topk:0.01", "randomk:0.01", "threshold:0.001", "powersgd:4"; with options
    "ef=off" (no error feedback, which biased codecs have), "delta", "stochastic", "warmup=N",
    "seed=N". Gradients must be float32 on the CPU. One for each model; all ranks of `group` make it
    together, since it has a group of its own. Each bucket's first average is exact: DDP regroups
    its buckets after the first step."""

    def __init__(self, spec: str, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ValueError(
                f'weft_torch.Codec("{spec}") needs the ranks: call '
                f'torch.distributed.init_process_group first'
            )
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._group = dist.new_group(members, backend="weft", use_local_synchronization=True)
        self._hook = _C.CodecHook(self._group._get_backend(torch.device("cpu")), spec)

    @property
    def spec(self) -> str:
        """With every option that the codec takes."""
        return self._hook.spec

    def state_dict(self) -> dict[str, Any]:
        """This rank's memory, tensors and numbers only. Between steps; before the second step there
        is none."""
        buckets = {
            index: {"step": saved.step, "count": saved.count, "memory": saved.memory}
            for index, saved in self._hook.state().items()
        }
        return {
            "spec": self.spec,
            "world": self._group.size(),
            "rank": self._group.rank(),
            "buckets": buckets,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there, from the second step after this on. ValueError where the state is of
        another codec, rank or number of ranks."""
        for what, mine in (
            ("spec", self.spec),
            ("world", self._group.size()),
            ("rank", self._group.rank()),
        ):
            if state[what] != mine:
                raise ValueError(
                    f"this codec's {what} is {mine}, that of the state {state[what]}: it is of "
                    f"another job or another rank's"
                )
        self._hook.load(
            {
                index: _C.SavedBucket(saved["step"], saved["count"], saved["memory"])
                for index, saved in state["buckets"].items()
            }
        )


def codec_hook(state: Codec, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook(Codec(...), codec_hook): the average of the
    bucket over the ranks, through the codec."""
    done = state._hook.average(bucket.index(), bucket.buffer(), bucket.gradients()).get_future()
    # DDP asks for a future that Python has completed
    return done.then(lambda average: average.value())
