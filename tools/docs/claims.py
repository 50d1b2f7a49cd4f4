#!/usr/bin/env python3
"""claims.py ROOT [--check]: writes the tables of claims.toml into the pages that show them.

A page has <!-- claims: SYSTEM --> and <!-- end of claims -->; the table between is replaced.
--check writes nothing, and names what differs or is wrong: a page that is not as claims.toml says,
a claim without its proof in the sources, a feature that weft has and a sentence denies."""

import pathlib
import re
import runpy
import sys
import tomllib

REGION = re.compile(r"(<!-- claims: (\S+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
DENIAL = re.compile(
    r"\b(?:does not|do not|doesn't|cannot|can't) (?:have|support|offer|provide|continue)\b"
    r"|\b(?:not|nor) (?:supported|available|implemented|possible|tested)\b|\bthere (?:is|are) no\b"
)
SENTENCE = re.compile(r"(?<=[.!?:|])\s+")
PAGES = ("README.md", "python/README.md", "docs/*.md")
LEFT_OUT = ("pytorch-tests.md", "ROADMAP.md")  # a report of tests, and plans


def claims(root):
    return tomllib.loads((root / "tools/docs/claims.toml").read_text())["claim"]


def pages(root):
    found = [path for pattern in PAGES for path in sorted(root.glob(pattern))]
    return [path for path in found if path.name not in LEFT_OUT]


def table(all_claims, system):
    rows = [one for one in all_claims if system in one["of"]]
    if not rows:
        sys.exit(f"claims: no claim is of '{system}'")
    rows.sort(key=lambda one: "weft" not in one)
    lines = [f"| {one['name']} | {one.get('weft', 'not in weft')} |" for one in rows]
    return "\n".join(["| feature | weft |", "| --- | --- |", *lines])


def filled(text, all_claims):
    return REGION.sub(lambda at: f"{at[1]}\n{table(all_claims, at[2])}\n\n{at[3]}", text)


def sentences(text):
    """The sentences of a page without its code and its generated tables, with their lines."""
    text = REGION.sub(lambda at: re.sub(r"[^\n]", " ", at[0]), text)
    text = re.sub(r"^```.*?^```$", lambda at: "\n" * at[0].count("\n"), text, flags=re.M | re.S)
    at = 0
    for block in re.split(r"(\n\s*\n)", text):
        for part in SENTENCE.split(block):
            begin = text.index(part, at) if part else at
            yield text.count("\n", 0, begin) + 1, " ".join(part.split())
            at = begin + len(part)


def denials(name, text, all_claims):
    """(line, sentence, claim) where a sentence denies a feature that weft has."""
    for number, sentence in sentences(text):
        if not DENIAL.search(sentence):
            continue
        for one in all_claims:
            if "weft" in one and name not in one.get("limits", []):
                if any(word.lower() in sentence.lower() for word in one["words"]):
                    yield number, sentence, one["name"]


def unproved(root, all_claims):
    headers = runpy.run_path(str(root / "tools/make_public_headers"))["make"](root)
    names = "\n".join(headers.values()) + "".join(
        (root / "weft/train/internal" / name).read_text()
        for name in ("recipe_settings.cc", "settings.cc")
    )
    for one in all_claims:
        if "weft" in one:
            file, _, text = one["proof"].partition(": ")
            if text not in (root / file).read_text():
                yield f"{one['name']}: {file} does not have {text}"
            for page in re.findall(r"\]\(([\w-]+\.md)", one["weft"]):
                words = (root / "docs" / page).read_text().lower()
                if not any(word.lower() in words for word in one["words"]) and "gpu" not in page:
                    yield f"{one['name']}: docs/{page} says nothing of it"
        else:
            for word in one["absent"]:
                if re.search(re.escape(word), names):
                    yield f"{one['name']}: the public headers or recipe keys have {word}"


def problems(root):
    all_claims = claims(root)
    yield from unproved(root, all_claims)
    for page in pages(root):
        text, name = page.read_text(), page.relative_to(root)
        if filled(text, all_claims) != text:
            yield f"{name}: differs from tools/docs/claims.toml: tools/docs/claims.py ."
        for number, sentence, claim in denials(page.name, text, all_claims):
            yield f'{name}:{number}: weft has "{claim}": {sentence}'


def main():
    root = pathlib.Path(sys.argv[1])
    if "--check" in sys.argv[2:]:
        found = list(problems(root))
        print("\n".join(found) or "the pages agree with claims.toml")
        sys.exit(1 if found else 0)
    for page in pages(root):
        text = page.read_text()
        if (new := filled(text, claims(root))) != text:
            page.write_text(new)
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
