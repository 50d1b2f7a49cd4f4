"""Reads IN, which safetensors_test.cc wrote, with the safetensors package, compares it with what it
must be, and writes the same to OUT.

Usage: safetensors_peer.py IN OUT.  Exit 77: the package or torch is not installed.
"""

import sys

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(error)
    sys.exit(77)

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
want = {
    name: (torch.arange(6) % 2 if name == "bool" else torch.arange(6) * 3).to(dtype).reshape(2, 3)
    for name, dtype in DTYPES.items()
}
want["scalar"] = torch.tensor(2.5)
want["empty"] = torch.empty(0, 4)
want["naïve \"ключ\" \\"] = torch.tensor([1.0])
METADATA = {"format": "pt", "line": "a\nb"}

got = load_file(sys.argv[1])
assert got.keys() == want.keys(), (got.keys(), want.keys())
for name, tensor in want.items():
    assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name
with safe_open(sys.argv[1], framework="pt") as file:
    assert file.metadata() == METADATA, file.metadata()
save_file(want, sys.argv[2], metadata=METADATA)
