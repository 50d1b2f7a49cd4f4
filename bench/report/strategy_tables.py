"""The tables of docs/strategies.md, each a function of the published runs."""

from results import digits, ms, percent, table, times


def of_case(run, case):
    return [line for line in run.part("strategies") if line["params"]["case"] == case]


def value_of_sync(lines):
    return next(line["value"] for line in lines if line["params"]["strategy"] == "sync")


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
        by_period.setdefault(period_of(line), {})[line["params"]["strategy"]] = line["value"]
    rows = [
        [period, *(percent(of.get(name), 2) for name in ("downpour", "easgd_async"))]
        for period, of in by_period.items()
    ]
    return table(["period", "`downpour`", "`easgd_async`"], rows)


def link(run):
    lines = of_case(run, "link")
    sync = value_of_sync(lines)
    rows = []
    for line in lines:
        of = line["params"]
        value = line["value"]
        faster = times(sync / value) if sync and value else ""
        steps = "not reached" if of["steps"] is None else str(of["steps"])
        time = "" if value is None else f"{value:.0f} s"
        row = [f"`{of['strategy']}`", period_of(line), ms(of["step_ms"]), steps, time, faster]
        rows.append(row)
    head = ["strategy", "period", "step, mean", "steps to the accuracy", "time"]
    return table([*head, "times faster than sync"], rows)


FIGURES = {"strategies": accuracy, "strategies-periods": periods, "strategies-link": link}
