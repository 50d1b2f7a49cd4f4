"""Writes pipeline_reference.inc: the actions of PyTorch's pipeline schedules on each rank, each as
stage, kind (F, B, I, W) and micro-batch.

1F1B is left out: PyTorch 2.13 makes its list for pictures only, with a micro-batch that does not
exist. Run with a Python that has torch: python pipeline_reference.py > pipeline_reference.inc
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
