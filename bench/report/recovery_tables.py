"""The tables of docs/fault-tolerance-results.md, each a function of the published runs."""

import math

from results import digits, ms, percent, table

SYSTEMS = {
    "weft-spare": "weft, a warm spare",
    "weft": "weft, a new process",
    "torchrun": "torchrun, its defaults",
    "torchrun-restarts": "torchrun `--max-restarts 1000`",
    "torchrun-best": "torchrun `--max-restarts 1000 --monitor-interval 0.05`",
    "torchft": "torchft, operations limited to 5 s",
}
MODELS = {"cnn": "CNN", "resnet18": "ResNet-18", "gpt-128": "GPT-128"}


def seconds(value):
    return "" if value is None else f"{digits(value)} s"


def share(values, part):
    """The value below which this part of the values lies (nearest rank). None without values."""
    values = sorted(values)
    return values[max(1, math.ceil(part * len(values))) - 1] if values else None


def spread(values):
    return [seconds(share(values, part)) for part in (0.5, 0.99, 1)]


def of_all(lines, key):
    return [value for line in lines for value in line[key]]


def grouped(lines, *keys):
    """The lines by their params of these names."""
    groups = {}
    for line in lines:
        groups.setdefault(tuple(line["params"].get(key) for key in keys), []).append(line)
    return groups


def recovery(run):
    cases = grouped(run.part("recovery"), "ranks", "impl")
    rows = []
    for (ranks, impl), lines in sorted(cases.items(), key=lambda one: one[0][0]):
        times, lost = of_all(lines, "times_s"), of_all(lines, "redone_steps")
        kills = len(times) + sum(line["not_recovered"] for line in lines)
        mean = digits(sum(lost) / len(lost)) if lost and sum(lost) else "0" if lost else ""
        middle, _, most = spread(times)
        rows.append(
            [SYSTEMS[impl], str(ranks), str(kills), str(len(times)), middle, most, mean]
        )
    head = ["system", "ranks", "kills", "recovered", "median", "longest", "steps done again, mean"]
    return table(head, rows)


def faults(run):
    """Kills, shrinking and stops, by the number of ranks."""
    names = {
        ("kills", 1): ("SIGKILL, a warm spare", "p99 under 1 s"),
        ("kills", 0): ("SIGKILL, a new process", "p99 under 3 s"),
        ("shrinking", None): ("SIGKILL, the others continue", "under 1 s"),
        ("stops", None): ("SIGSTOP, a new process", ""),
    }
    rows = []
    for (case, spares, ranks), lines in grouped(
        run.part("faults"), "case", "spares", "ranks"
    ).items():
        if (case, spares) not in names:
            continue
        name, goal = names[case, spares]
        count = sum(line["faults"] for line in lines)
        recovered = sum(line["recovered"] for line in lines)
        times = spread(of_all(lines, "next_step_s"))
        rows.append([name, str(ranks), str(count), str(recovered), *times, goal])
    head = ["fault", "ranks", "faults", "recovered", "median", "p99", "longest", "goal"]
    return table(head, rows)


def random_kills(run):
    kinds = {
        "one": "one rank",
        "pair": "two ranks, up to 0.6 s apart",
        "start": "one rank, in its first second",
        "staggered": "all ranks, 30 to 100 ms apart",
    }
    rows = []
    for (kind, spares), lines in grouped(run.part("random-kills"), "kind", "spares").items():
        rows.append(
            [
                kinds[kind],
                "a warm spare" if spares else "a new process",
                *(str(sum(line[key] for line in lines)) for key in ("trials", "right")),
                *spread(of_all(lines, "times_s")),
                "p99 under 1 s" if spares else "p99 under 3 s",
            ]
        )
    head = ["killed", "replaced by", "trials", "right", "median", "p99", "longest", "goal"]
    return table(head, rows)


def named(run):
    """From SIGSTOP to the report that names the rank."""
    lines = [line for line in run.part("faults") if line["params"]["case"] == "stops"]
    times = of_all(lines, "named_s")
    count = sum(line["faults"] for line in lines)
    wrong = sum(len(line["problems"]) for line in lines)
    which = "and no other rank" if wrong == 0 else f"with {wrong} problems"
    return (
        f"Of {count} stopped ranks, the launcher named {len(times)}, {which}: after"
        f"\n{seconds(share(times, 0.5))} in the median and {seconds(max(times))} at most."
    )


def forms(run):
    lines = [line for line in run.part("faults") if line["params"]["case"] == "forms"]
    rows = []
    for line in lines:
        middle, _, most = spread(line["next_step_s"])
        same = "equal" if line["same_weights"] else "differ"
        plan = f"`{line['params']['plan']}`"
        rows.append([plan, str(line["faults"]), str(line["recovered"]), middle, most, same])
    times = of_all(lines, "next_step_s")
    same = sum(line["same_weights"] for line in lines)
    kills, recovered = (str(sum(line[key] for line in lines)) for key in ("faults", "recovered"))
    middle, _, most = spread(times)
    rows.append(["all", kills, recovered, middle, most, f"equal in {same} of {len(lines)}"])
    return table(["form", "kills", "recovered", "median", "longest", "final weights"], rows)


def goodput(run):
    lines = [line for line in run.part("goodput") if "measured" in line["params"]]
    rows = []
    for line in lines:
        spare = line["params"]["form"] == "spare"
        lost = line["lost_s"]
        rows.append(
            [
                "a warm spare" if spare else "a new process",
                str(len(line["rounds"])),
                percent(line["value"]),
                "98 %" if spare else "95 %",
                percent(min(line["rounds"])),
                percent(max(line["rounds"])),
                *(seconds(lost[part]) for part in ("before", "stalled", "soon_after", "later")),
            ]
        )
    head = ["a lost rank is replaced by", "minutes", "goodput, median", "goal", "least", "most"]
    lost = ["lost before the kill", "until the next step", "in the 10 s after it", "later"]
    return table([*head, *lost], rows)


def cost(run):
    rows = []
    for model in run.values("recovery-cost", "model"):
        plain, ready = (
            run.value("recovery-cost", "ms", model=model, form=form) for form in ("plain", "ready")
        )
        ratio = run.value("recovery-cost", model=model, measured="ready / plain")
        goal = "" if model == "cnn" else "3 %"
        rows.append([MODELS[model], ms(plain), ms(ready), percent(ratio - 1), goal])
    return table(["model", "step", "step, ready for faults", "cost", "at most"], rows)


FIGURES = {
    "recovery": recovery,
    "faults": faults,
    "random-kills": random_kills,
    "named": named,
    "forms": forms,
    "goodput": goodput,
    "recovery-cost": cost,
}
