"""Loads a model that `weft export` wrote with Hugging Face's transformers, continues a prompt by
greedy decoding, and compares the text with weft's. Exit code 1 if the texts differ or if
transformers reports missing or unexpected weights.

    huggingface_peer.py FOLDER [--weft build/release/bin/weft] [--prompt TEXT] [--tokens 40]

Needs torch, transformers.
"""

import argparse
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--prompt", default="This License")
    parser.add_argument("--tokens", type=int, default=40)
    words = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(words.folder)
    model, loading = AutoModelForCausalLM.from_pretrained(words.folder, output_loading_info=True)
    wrong = {key: list(names) for key, names in loading.items() if names}
    prompt = tokenizer(words.prompt, return_tensors="pt")
    with torch.no_grad():
        made = model.eval().generate(
            **prompt, max_new_tokens=words.tokens, do_sample=False, pad_token_id=0
        )
    theirs = tokenizer.decode(made[0], skip_special_tokens=True)
    command = [
        words.weft, "generate", words.folder, "--prompt", words.prompt, "--tokens",
        str(words.tokens), "--temperature", "0"
    ]
    ours = subprocess.run(command, capture_output=True, text=True, check=True).stdout.removesuffix(
        "\n"
    )
    print(
        f"{type(model).__name__}, {type(tokenizer).__name__}, "
        f"{wrong or 'every weight found its place'}\ntransformers: {theirs!r}\n"
        f"weft:         {ours!r}"
    )
    return 0 if ours == theirs and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
