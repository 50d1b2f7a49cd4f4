# BLOCK

tensors = load("runs/a/ckpt/step-00000002")
assert tensors and all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
