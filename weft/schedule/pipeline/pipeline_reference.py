"""Writes pipeline_reference.inc: what PyTorch's pipeline schedules do on each rank, as stage, kind
(F, B, I, W) and micro-batch.

Not 1F1B: its list of PyTorch 2.13 is for pictures only, and has a micro-batch that does not exist.
Run with a Python that has torch: python pipeline_reference.py > pipeline_reference.inc
"""

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

CASES = [
    ("GPipe", "kGPipe", 3, 4, 1),
    ("Interleaved1F1B", "kInterleaved", 2, 4, 2),
    ("Interleaved1F1B", "kInterleaved", 4, 8, 2),
    ("Interleaved1F1B", "kInterleaved", 4, 6, 3),
    ("Interleaved1F1B", "kInterleaved", 3, 8, 2),
    ("ZBVZeroBubble", "kZeroBubbleV", 2, 4, 2),
    ("ZBVZeroBubble", "kZeroBubbleV", 4, 8, 2),
    ("ZBVZeroBubble", "kZeroBubbleV", 3, 2, 2),
]

for schedule, name, ranks, micro_batches, virtual_stages in CASES:
    actions = get_schedule_ops(schedule, ranks, micro_batches, virtual_stages)
    print(f"{{Algorithm::{name}, {ranks}, {micro_batches}, {virtual_stages}, {{", end="")
    print(
        ", ".join(
            '"' + " ".join(str(a) for a in rank if a is not None and "REDUCE" not in str(a)) + '"'
            for rank in actions
        ),
        end="",
    )
    print("}},")
