"""The tables of docs/strategies.md, each a function of the published runs."""

from results import digits, ms, percent, table, times


def of_case(run, case, part="strategies"):
    return [line for line in run.part(part) if line["params"]["case"] == case]


def value_of_sync(lines):
    return next(line["value"] for line in lines if line["params"]["strategy"] == "sync")


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
    rows = []
    for line in lines:
        of = line["params"]
        moved = sum(of[key] or 0 for key in ("sent_mb", "shared_mb"))
        rows.append(
            [
                f"`{of['strategy']}`",
                period_of(line),
                percent(line["value"], 2),
                f"{100 * (line['value'] - sync):+.2f}",
                steps_to(of["curve"], 0.88),
                f"{digits(moved)} MB" if moved or of["strategy"] == "sync" else "not counted",
                f"{of['seconds']:.0f} s",
            ]
        )
    head = ["strategy", "period", "accuracy", "difference to sync, points", "steps to 88 %"]
    return table([*head, "sent or read by others, a step", "time"], rows)


def periods(run):
    by_period = {}
    for line in of_case(run, "periods"):
        whole = any(word.startswith("strategy.lr=") for word in line["params"]["settings"])
        rule = line["params"]["strategy"] + (", whole changes" if whole else "")
        by_period.setdefault(period_of(line), {})[rule] = line["value"]
    rules = ("downpour", "downpour, whole changes", "easgd_async")
    rows = [
        [period, *(percent(of[rule], 2) if rule in of else "" for rule in rules)]
        for period, of in by_period.items()
    ]
    return table(["period", *rules], rows)


def rate_text(rate):
    """"100mbit", as tc writes it: 100 Mbit/s."""
    number = rate.rstrip("gmkbit")
    return f"{number} {rate[len(number):].capitalize()}/s"


def link(run):
    lines = of_case(run, "link")
    rows = []
    for rate in dict.fromkeys(line["params"]["rate"] for line in lines):
        of_rate = [line for line in lines if line["params"]["rate"] == rate]
        sync = value_of_sync(of_rate)
        for line in of_rate:
            of = line["params"]
            row = [rate_text(rate), f"`{of['strategy']}`", period_of(line)]
            rows.append([*row, ms(of["step_ms"]), *time_of(line, sync)])
    head = ["link", "strategy", "period", "step, mean", "steps to the accuracy", "time"]
    return table([*head, "times faster than sync"], rows)


def slow(run):
    lines = of_case(run, "slow", "strategies-slow")
    sync = next(line["value"] for line in lines if line["params"]["rule"] == "sync")
    rows = []
    for line in lines:
        of = line["params"]
        settings = " ".join([f"strategy.name={of['strategy']}", *of["settings"]])
        row = [of["rule"], f"`{settings}`", ms(of["step_ms"]), *time_of(line, sync)]
        rows.append([*row, percent(of["accuracy"], 2)])
    head = ["rule", "settings", "step, mean", "steps to 90 %", "time", "times faster than sync"]
    return table([*head, "accuracy at the end"], rows)


FIGURES = {
    "strategies": accuracy,
    "strategies-periods": periods,
    "strategies-link": link,
    "strategies-slow": slow,
}
