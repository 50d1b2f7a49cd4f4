"""Reads the lines of a published run, and formats its figures."""

import json

# A line with one of these keys in its params is another figure of the same case. find() returns it
# only if the key is requested.
SPECIAL = ("against", "memory", "measured", "share", "time")


class Missing(Exception):
    """A part that was not measured in this run."""


class Results:
    """The head and the lines of each part, from folders bench/results/DATE-COMMIT. A part that is
    in several folders is that of the first."""

    def __init__(self, *folders):
        self.heads, self.lines, self.files = {}, {}, {}
        for file in (file for folder in folders for file in sorted(folder.glob("*.jsonl"))):
            head, *lines = map(json.loads, file.read_text().splitlines())
            if head["part"] not in self.heads:
                self.heads[head["part"]], self.lines[head["part"]] = head, lines
                self.files[head["part"]] = f"bench/results/{file.parent.name}/{file.name}"
        if not self.heads:
            raise SystemExit(f"report: no results in {', '.join(map(str, folders))}")

    def part(self, name):
        """The lines of a part."""
        if name not in self.lines:
            raise Missing(name)
        return self.lines[name]

    def find(self, part, unit=None, **params):
        """The lines of a part with these params, in order."""
        found = []
        for line in self.part(part):
            has = line["params"]
            plain = all(key in params or key not in has for key in SPECIAL)
            same = all(has.get(key) == value for key, value in params.items())
            if plain and same and unit in (None, line["unit"]):
                found.append(line)
        return found

    def value(self, part, unit=None, **params):
        """The value of the last such line; None if there is none."""
        found = self.find(part, unit, **params)
        return found[-1]["value"] if found else None

    def values(self, part, key):
        """The different values of `key` in the params of a part, in order."""
        return list(dict.fromkeys(line["params"].get(key) for line in self.part(part)))


def against_alone(run, part, impl, **case):
    """The step time of impl relative to weft's compute alone, as the median over the rounds."""
    own = run.value(part, "times faster", impl=impl, against="weft-alone", **case)
    if own:
        return 1 / own
    return run.value(part, "times faster", impl="weft-alone", against=impl, **case)


def digits(value):
    """The value with about three significant digits."""
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def time_of(us):
    """Microseconds as text with a unit; empty for None."""
    if us is None:
        return ""
    if us < 1000:
        return f"{digits(us)} us"
    return f"{digits(us / 1e3)} ms" if us < 1e6 else f"{digits(us / 1e6)} s"


def ms(value):
    return time_of(None if value is None else value * 1e3)


def times(value):
    return "" if value is None else f"{digits(value)}x"


def mib(value):
    return "" if value is None else f"{value:.0f} MiB"


def percent(value, after_point=1):
    return "" if value is None else f"{100 * value:.{after_point}f} %"


def size_of(count):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def table(head, rows):
    """A Markdown table without the columns that are empty in all rows."""
    kept = [i for i in range(len(head)) if i == 0 or any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---"] * len(kept)]
    lines += [[row[i] for i in kept] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
