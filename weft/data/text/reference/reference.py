"""Writes the known answers of tokenizer_test.cc: tokenizers of several kinds, trained by Hugging
Face's `tokenizers`, and its results for difficult text.

usage: reference.py   (pip install tokenizers==0.23.3). Writes the *.json beside it from text.txt.
"""

import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import (
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
)

HERE = pathlib.Path(__file__).parent
TEXT = str(HERE / "text.txt")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TEXTS = [
    "", " ", "a", "Hello, world", " Hello", "Hello ", "  two  spaces   three ", "\n", "\n\n\n",
    "a\n\n b\r\n\r\nc \n d", "\t\ttabs\t and \t spaces\t",
    "I'm you're we've they'd she'll it's don't I'M YOU'RE WE'VE 'tis '90s x's' ''s",
    "12 123 1234 12345678 3.14 1,000,000 ½ ² Ⅷ ٣٤ १२", "the weaver's threads",
    "trailing spaces    ", "   leading", "naïve café élan Größe", "cafe\u0301 and caf\u00e9",
    "织工织布，经线和纬线交叉。", "糸は長く、布は広い。ｶﾀｶﾅ", "베틀에서", "नमस्ते दुनिया", "مرحبا بالعالم", "שלום",
    "🧵🧶👩‍🔧👍🏽 ok🙂", "\u200d\ufe0f\u200b",
    "\u00a0nbsp\u2003em\u3000wide\u2028line\u0085next\u180emvs\u1680ogham",
    "a\x00b\x01c\x7f\x1b[0m", "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ",
    "<|endoftext|><|pad|>", "<|endoftext", "<|pad|>x<|pad|> y<|padded|>",
    "def f(x):\n    return {'a': 1}\n\n\n\tpass", "https://example.org/a?b=c&d=%20#e",
    "$$$ !!! ... -- — “quotes” «x»", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "word" * 40, " " * 50, "x" + " " * 17 + "y", "\u2581already\u2581there\u2581",
    "\U0001f1e8\U0001f1ed\U000e0067\U0010ffff\ufffd\ue000", "The End.", "ſtrange ſ's K's \u0130'S",
    "mixed织123abc织", "\ufeffbom",
]  # fmt: skip


def train(tokenizer, size, alphabet=None, specials=("<|endoftext|>", "<|pad|>")):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=alphabet or [],
        show_progress=False
    )
    tokenizer.train([TEXT], trainer)
    return tokenizer


def gpt2(add_prefix_space=False):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    t.decoder = decoders.ByteLevel()
    return train(t, 500, pre_tokenizers.ByteLevel.alphabet())


def split(pattern, ignore_merges, normalizer=None):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    train(t, 600, pre_tokenizers.ByteLevel.alphabet())
    t.add_tokens([AddedToken("weavers", normalized=False), AddedToken("weav", normalized=False)])
    return t


def llama2():
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # Only for training.
    t.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0)
        ]
    )
    train(
        t,
        700,
        specials=["<unk>", "<s>", "</s>", "<|endoftext|>", "<|pad|>"]
        + [f"<0x{b:02X}>" for b in range(256)],
    )
    spec = json.loads(t.to_str())
    spec["pre_tokenizer"] = None
    spec["added_tokens"] = [
        token for token in spec["added_tokens"] if not token["content"].startswith("<0x")
    ]
    # Removes some characters from the vocabulary, and merges that contain them, so that the byte
    # fallback is used.
    return Tokenizer.from_str(json.dumps(drop_alphabet(spec, "éñ织糸ж🧵")))


def metaspace():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    return train(t, 500, specials=["<unk>", "<|endoftext|>", "<|pad|>"])


def digits():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    return train(t, 400, pre_tokenizers.ByteLevel.alphabet())


def drop_alphabet(spec, characters):
    vocab = {k: v for k, v in spec["model"]["vocab"].items() if not set(k) & set(characters)}
    spec["model"]["merges"] = [
        m for m in spec["model"]["merges"] if all(part in vocab for part in [*m, "".join(m)])
    ]
    spec["model"]["vocab"] = vocab
    return spec


def save(name, tokenizer, old_merges=False):
    spec = json.loads(tokenizer.to_str())
    if old_merges:
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text)
    tokenizer = Tokenizer.from_str(text)
    rows = []
    for content in TEXTS:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(content, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        as_text = tokenizer.encode(content, add_special_tokens=False).ids
        rows.append([content, ids, as_text, tokenizer.decode(ids, skip_special_tokens=False)])
    return rows


cases = {
    "gpt2": save("gpt2", gpt2(), old_merges=True),
    "gpt2_prefix": save("gpt2_prefix", gpt2(add_prefix_space=True)),
    "llama3": save("llama3", split(LLAMA3, ignore_merges=True)),
    "qwen": save("qwen", split(QWEN, ignore_merges=False, normalizer=normalizers.NFC())),
    "llama2": save("llama2", llama2()),
    "metaspace": save("metaspace", metaspace()),
    "digits": save("digits", digits()),
}
lines = ",\n".join(
    json.dumps(name) + ": [\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"
    for name, rows in cases.items()
)
(HERE / "cases.json").write_text("{\n" + lines + "\n}\n")

# Strings of characters that decompose, compose, reorder or are excluded, and their NFC by CPython.
draw = random.Random(1)
pool = (
    "aeoAqkᄀ가ᅡᆨ각ﬁÅ\u212b\u0340\u0343\u0958\u2126\ufb1d\u1e9b\u0323\u0307\u0301\u0300"
    "\u0328\u031b\u093c\u0915\u0bc6\u0bbe\u0cca\u0f71\u0f72\u3099か\u11a7\u1d15e"
    "\U0001d15e\U00011099\U000110ba\u0345\u1fb4-\n"
)
strings = ["".join(draw.choices(pool, k=draw.randint(1, 8))) for _ in range(300)]
strings += [
    chr(c)
    for c in range(sys.maxunicode + 1)
    if not 0xD800 <= c < 0xE000 and unicodedata.normalize("NFC", chr(c)) != chr(c)
][::9]
rows = [[s, unicodedata.normalize("NFC", s)] for s in strings]
(HERE / "nfc.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
