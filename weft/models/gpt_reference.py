"""Writes the known answers of gpt_test.cc into testdata/: small random GPT-2 and Llama checkpoints
with the parameter names of Hugging Face's transformers, and the logits and loss that transformers
computes from them in float32. config.json is the file's metadata. llama3 has the options that
Llama 3.1 and related models add: scaled rotary positions, a tied head, heads wider than
width / heads, biases of attention.
Needs torch, transformers, safetensors.

Usage: gpt_reference.py
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent / "testdata"


def write(name, model):
    torch.manual_seed(5)
    model.eval()
    with torch.no_grad():
        # Also norms and biases, whose initial values are all 1 or 0.
        for key, p in model.named_parameters():
            p.copy_(
                torch.randn(p.shape) * 0.2 + (1 if p.dim() == 1 and key.endswith("weight") else 0)
            )
        tokens = torch.randint(0, model.config.vocab_size, (2, 12))
        out = model(tokens, labels=tokens)
    # save_pretrained() stores a tied head and the embedding once, under the embedding's name.
    tied = model.config.tie_word_embeddings
    tensors = {
        k: v.contiguous()
        for k, v in model.state_dict().items()
        if not (tied and k == "lm_head.weight")
    }
    tensors |= {"tokens": tokens, "logits": out.logits, "loss": out.loss}
    HERE.mkdir(exist_ok=True)
    save_file(
        tensors,
        HERE / f"{name}.safetensors",
        metadata={"config": model.config.to_json_string(use_diff=False)},
    )
    print(name, (HERE / f"{name}.safetensors").stat().st_size, "bytes, loss", out.loss.item())


write(
    "gpt2",
    GPT2LMHeadModel(
        GPT2Config(
            vocab_size=37, n_positions=16, n_embd=16, n_layer=2, n_head=4, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    ),
)
write(
    "llama",
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
            rms_norm_eps=1e-6, rope_theta=500.0, tie_word_embeddings=False
        )
    ),
)
write(
    "llama3",
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=37,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            rms_norm_eps=1e-6,
            attention_bias=True,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=[2, 3],
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    ),
)
