"""The tables of strategies-results.md and optimizers-results.md. Each is made of the published
runs."""

from results import Missing, digits, ms, percent, table, times


def of_case(run, case, part="strategies"):
    return [line for line in run.part(part) if line["params"]["case"] == case]


def name_of(line):
    """The name of a line's rule. Lines of older runs have the strategy only."""
    return line["params"].get("rule") or f"`{line['params']['strategy']}`"


def value_of_sync(lines):
    return next(line["value"] for line in lines if line["params"]["strategy"] == "sync")


def settings_of(line):
    of = line["params"]
    words = [f"strategy.name={of['strategy']}", *of["settings"]]
    return f"`{' '.join(words)}`"


def moved_mb(line):
    """What a rank sends in a step, or others read of it."""
    return sum(line["params"][key] or 0 for key in ("sent_mb", "shared_mb"))


def seconds_of(line):
    """The time of training, without evaluations. Older runs have that of the whole run only."""
    of = line["params"]
    return of["at_s"][-1] if of.get("at_s") else of["seconds"]


def time_of(line, sync):
    """Steps, time, and how many times faster than sync."""
    value, steps = line["value"], line["params"]["steps"]
    return [
        "not reached" if steps is None else str(steps),
        "" if value is None else f"{value:.0f} s",
        times(sync / value) if sync and value else "",
    ]


def period_of(line):
    settings = dict(word.split("=") for word in line["params"]["settings"])
    return settings.get("strategy.period", "")


def steps_to(curve, target):
    return next((str(step) for step, accuracy in curve if accuracy >= target), "not reached")


def accuracy(run):
    lines = of_case(run, "accuracy")
    sync = value_of_sync(lines)
    target = 0.90 if lines[0]["params"]["epochs"] >= 5 else 0.88
    rows = []
    for line in lines:
        of = line["params"]
        moved = moved_mb(line)
        rows.append(
            [
                name_of(line),
                settings_of(line),
                percent(line["value"], 2),
                f"{100 * (line['value'] - sync):+.2f}",
                steps_to(of["curve"], target),
                f"{digits(moved)} MB" if moved or of["strategy"] == "sync" else "not counted",
                f"{seconds_of(line):.0f} s",
            ]
        )
    head = ["rule", "settings", "accuracy", "difference to sync, points"]
    head += [f"steps to {100 * target:.0f} %", "sent or read by others, a step"]
    return table([*head, "time of training"], rows)


def periods(run):
    by_period = {}
    for line in of_case(run, "periods", "strategies-periods"):
        by_period.setdefault(period_of(line), {})[name_of(line)] = line["value"]
    rules = list(dict.fromkeys(rule for of in by_period.values() for rule in of))
    rows = [
        [period, *(percent(of.get(rule), 2) for rule in rules)] for period, of in by_period.items()
    ]
    return table(["period", *rules], rows)


def codecs(run):
    """A rule with a codec is compared with the line before it that has none."""
    rows = []
    for line in of_case(run, "codecs", "strategies-codecs"):
        of = line["params"]
        if not any("codec" in word for word in of["settings"]):
            plain = line
        moved = moved_mb(line)
        rows.append(
            [
                name_of(line),
                settings_of(line),
                percent(line["value"], 2),
                "" if line is plain else f"{100 * (line['value'] - plain['value']):+.2f}",
                f"{digits(moved)} MB",
                "" if line is plain else times(moved_mb(plain) / moved),
            ]
        )
    head = ["rule", "settings", "accuracy", "difference, points"]
    return table([*head, "sent or read by others, a step", "times less"], rows)


def optimizers(run):
    rows = []
    for line in of_case(run, "optimizers", "optimizers"):
        of = line["params"]
        settings = " ".join(word.removeprefix("optimizer.") for word in of["settings"])
        rows.append(
            [
                f"`{of['rule']}`" if " " not in of["rule"] else of["rule"],
                f"`{settings}`" if settings else "the recipe's",
                percent(line["value"], 2),
                f"{of['loss']:.3f}",
                steps_to(of["curve"], 0.88),
                f"{of['samples_per_s']:.0f}",
            ]
        )
    head = ["optimizer", "settings", "accuracy", "test loss", "steps to 88 %"]
    return table([*head, "samples a second"], rows)


def rate_text(rate):
    """"100mbit", as tc writes it: 100 Mbit/s."""
    number = rate.rstrip("gmkbit")
    return f"{number} {rate[len(number):].capitalize()}/s"


def lines_of_link(run):
    """Older runs have them in another part."""
    if "strategies-link" in run.lines:
        return of_case(run, "link", "strategies-link")
    lines = of_case(run, "link") if "strategies" in run.lines else []
    if not lines:
        raise Missing("strategies-link")
    return lines


def link(run):
    lines = lines_of_link(run)
    rows = []
    for rate in dict.fromkeys(line["params"]["rate"] for line in lines):
        of_rate = [line for line in lines if line["params"]["rate"] == rate]
        sync = value_of_sync(of_rate)
        for line in of_rate:
            of = line["params"]
            row = [rate_text(rate), name_of(line), period_of(line)]
            rows.append([*row, ms(of["step_ms"]), *time_of(line, sync)])
    head = ["link", "rule", "period", "step, mean", "steps to the accuracy", "time"]
    return table([*head, "times faster than sync"], rows)


def slow(run):
    lines = of_case(run, "slow", "strategies-slow")
    sync = next(line["value"] for line in lines if line["params"]["rule"] == "sync")
    rows = []
    for line in lines:
        of = line["params"]
        row = [of["rule"], settings_of(line), ms(of["step_ms"]), *time_of(line, sync)]
        rows.append([*row, percent(of["accuracy"], 2)])
    head = ["rule", "settings", "step, mean", "steps to 90 %", "time", "times faster than sync"]
    return table([*head, "accuracy at the end"], rows)


FIGURES = {
    "strategies": accuracy,
    "strategies-codecs": codecs,
    "strategies-periods": periods,
    "strategies-link": link,
    "strategies-slow": slow,
    "optimizers": optimizers,
}
