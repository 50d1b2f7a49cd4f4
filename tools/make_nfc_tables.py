#!/usr/bin/env python3
"""Prints weft/data/text/internal/nfc_tables.cc: what Normalization Form C needs of the Unicode character database, as Python's unicodedata has it.

usage: make_nfc_tables.py > weft/data/text/internal/nfc_tables.cc"""
import sys
import unicodedata
from itertools import groupby


def rows(items):
    line = ""
    for item in items:
        if len(line) + len(item) > 138:
            yield line
            line = ""
        line += item
    yield line


def pairs():
    """Canonical decompositions of one step; Hangul's are computed. +0x200000: the two are never composed to it again."""
    for code in range(sys.maxunicode + 1):
        fields = unicodedata.decomposition(chr(code)).split()
        if not fields or fields[0].startswith("<"):
            continue
        first, second = (int(f, 16) for f in (*fields, "0")[:2])
        composes = second and unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(code)
        yield f"{{{code},{first + (0 if composes else 0x200000)},{second}}},"


def classes():
    marked = [(c, unicodedata.combining(chr(c))) for c in range(sys.maxunicode + 1) if unicodedata.combining(chr(c))]
    for _, run in groupby(enumerate(marked), key=lambda item: (item[1][0] - item[0], item[1][1])):
        run = [entry for _, entry in run]
        yield f"{{{run[0][0]},{run[-1][0]},{run[0][1]}}},"


print(f"// Made by tools/make_nfc_tables.py from the Unicode character database {unicodedata.unidata_version}.")
print('#include "weft/data/text/internal/nfc.h"\n\nnamespace weft::data::text::internal {\n\n// clang-format off')
for declaration, items in (("const NfcPair kNfcPairs[]", list(pairs())), ("const NfcClass kNfcClasses[]", list(classes()))):
    print(f"{declaration} = {{")
    print("\n".join(rows(items)) + "\n};")
print("// clang-format on\nconst std::size_t kNfcPairCount = std::size(kNfcPairs);\nconst std::size_t kNfcClassCount = std::size(kNfcClasses);")
print("\n}  // namespace weft::data::text::internal")
