"""Writes testdata/mixtral.safetensors, the known answers of gpt_experts_test.cc: a small random
Mixtral with the parameter names of the published checkpoints, and the logits, the loss and the
balance loss that Hugging Face's transformers computes from it in float32. Needs torch,
transformers, safetensors.

Usage: gpt_experts_reference.py
"""

import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM

HERE = pathlib.Path(__file__).parent / "testdata"


def main():
    torch.manual_seed(5)
    model = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=37, hidden_size=16, intermediate_size=12, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
            rms_norm_eps=1e-6, rope_theta=500.0, tie_word_embeddings=False, sliding_window=None,
            num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
        )
    )
    model.eval()
    with torch.no_grad():
        for key, p in model.named_parameters():  # Also the norms, whose initial values are all 1.
            p.copy_(
                torch.randn(p.shape) * 0.2 + (1 if p.dim() == 1 and key.endswith("weight") else 0)
            )
        tokens = torch.randint(0, model.config.vocab_size, (2, 12))
        out = model(tokens, labels=tokens)
    # save_pretrained() writes the names of the published files, which may differ from the module's.
    folder = HERE / "mixtral"
    model.save_pretrained(folder)
    tensors = {k: v.contiguous() for k, v in load_file(folder / "model.safetensors").items()}
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    loss = out.loss - model.config.router_aux_loss_coef * out.aux_loss
    tensors |= {"tokens": tokens, "logits": out.logits, "loss": loss, "balance": out.aux_loss}
    save_file(tensors, HERE / "mixtral.safetensors")
    print(
        sorted(tensors),
        (HERE / "mixtral.safetensors").stat().st_size,
        "bytes, loss",
        loss.item(),
        "balance",
        out.aux_loss.item(),
    )


main()
