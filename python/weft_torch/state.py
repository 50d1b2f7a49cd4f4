"""copy_state(): the state_dict of one rank, on all ranks."""

import json
from typing import Any

import torch
import torch.distributed as dist


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value for JSON. Tensors are appended to the list."""
    if isinstance(value, torch.Tensor):
        # Others, such as a DTensor, may need collectives of their own.
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise TypeError(f"copy_state: a {type(value).__name__} cannot be copied")
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            kind = "meta" if value.is_meta else "quantized" if value.is_quantized else "sparse"
            raise TypeError(f"copy_state: a {kind} tensor cannot be copied")
        tensors.append(value.detach())
        return {"tensor": [str(value.dtype).partition(".")[2], *value.shape]}
    if isinstance(value, dict):
        pairs = [[_outline(k, tensors), _outline(v, tensors)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_outline(one, tensors) for one in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"copy_state: a {type(value).__name__} cannot be copied")


def _build(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """Inverse of _outline(), with new tensors, which are appended to the list."""
    if not isinstance(outline, dict):
        return outline
    ((kind, content),) = outline.items()
    if kind == "tensor":
        dtype, *shape = content
        tensors.append(torch.empty(shape, dtype=getattr(torch, dtype), device="cpu"))
        return tensors[-1]
    if kind == "dict":
        return {_build(k, tensors): _build(v, tensors) for k, v in content}
    items = [_build(one, tensors) for one in content]
    return tuple(items) if kind == "tuple" else items


def copy_state(state: Any, source: int, group: dist.ProcessGroup | None = None) -> Any:
    """The state of rank `source`, on every rank: dicts, lists and tuples of tensors, numbers, texts
    and None, such as state_dict() of a module or an optimizer. What other ranks pass is not used.
    Other ranks get their tensors on the CPU. No pickle is involved. Collective. Raises TypeError on
    all ranks for a state with anything else."""
    mine = dist.get_rank(group) == source
    tensors: list[torch.Tensor] = []
    text, sign = b"", 1
    if mine:
        try:
            text = json.dumps(_outline(state, tensors)).encode()
        except Exception as error:  # the other ranks wait for the state
            why = str(error)
            if not why.startswith("copy_state: "):
                why = f"copy_state: the state cannot be copied: {type(error).__name__}: {why}"
            text, sign = why.encode(errors="replace"), -1
    length = torch.tensor([sign * len(text)], device="cpu")
    dist.broadcast(length, group=group, group_src=source)
    size = abs(int(length))
    raw = torch.frombuffer(bytearray(text), dtype=torch.uint8) if mine else None
    raw = torch.empty(size, dtype=torch.uint8, device="cpu") if raw is None else raw
    dist.broadcast(raw, group=group, group_src=source)
    if int(length) < 0:
        raise TypeError(bytes(raw.tolist()).decode())
    if not mine:
        state = _build(json.loads(bytes(raw.tolist())), tensors)
    for tensor in tensors:
        if tensor.numel() > 0:
            dist.broadcast(tensor.cpu().contiguous(), group=group, group_src=source)
    return state
