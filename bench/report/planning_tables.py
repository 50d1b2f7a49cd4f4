"""The tables of docs/planning-results.md, each a function of the published runs."""

import statistics

from results import digits, ms, percent, table, times

MODELS = {"gpt-128": "GPT-128", "gpt-384": "GPT-384", "resnet18": "ResNet-18", "vit": "ViT"}
# Key of the measurement, key of the prediction. None: the value of the line.
STEP, MEMORY, TRAFFIC = (
    (None, "predicted_ms"),
    ("memory_mib", "predicted_memory_mib"),
    ("traffic_mib", "predicted_traffic_mib"),
)


def layouts_of(run):
    return [line for line in run.part("planning") if line["params"]["case"] == "layouts"]


def fixed(run):
    """The layouts that were given, without those that plan = "auto" chose."""
    return [line for line in layouts_of(run) if not line["params"].get("chosen")]


def pair(line, keys):
    """Measurement and prediction; None: there is none."""
    of = line["params"]
    return line["value"] if keys[0] is None else of.get(keys[0]), of.get(keys[1])


NO_TRAFFIC_MIB = 0.001  # a message in shared memory has marks of a few bytes


def error(line, keys):
    """The relative error of the prediction; None if one of the two is missing."""
    measured, predicted = pair(line, keys)
    if keys is TRAFFIC and None not in (measured, predicted):
        if max(measured, predicted) < NO_TRAFFIC_MIB:
            return 0.0
    return predicted / measured - 1 if measured and predicted is not None else None


def signed(value):
    return "" if value is None else f"{100 * value:+.1f} %"


def name_of(line):
    return MODELS[line["params"]["model"]]


def ms_text(value):
    return "" if value is None else ms(value)


def mib_text(value):
    return "" if value is None else f"{digits(value)} MiB"


def summary(run):
    """The errors by model."""
    lines = fixed(run)
    rows = []
    for model in dict.fromkeys(line["params"]["model"] for line in lines):
        of_model = [line for line in lines if line["params"]["model"] == model]
        row = [MODELS[model], str(len(of_model))]
        for keys in (STEP, MEMORY, TRAFFIC):
            errors = [abs(e) for line in of_model if (e := error(line, keys)) is not None]
            found = (statistics.median(errors), max(errors)) if errors else (None, None)
            row += map(percent, found)
        rows.append(row)
    head = ["model", "layouts", "step time: median error", "worst"]
    return table([*head, "memory: median", "worst", "traffic: median", "worst"], rows)


def layouts(run):
    """Measurement and prediction of each layout."""
    rows = []
    for line in fixed(run):
        of = line["params"]
        row = [name_of(line), str(of["ranks"]), of["layout"]]
        for keys, text in ((STEP, ms_text), (MEMORY, mib_text), (TRAFFIC, mib_text)):
            measured, predicted = pair(line, keys)
            row += [text(measured), text(predicted), signed(error(line, keys))]
        rows.append(row)
    figures = [
        part
        for name in ("step", "memory", "traffic")
        for part in (name, f"predicted {name}", f"error of {name}")
    ]
    return table(["model", "ranks", "layout", *figures], rows)


def chosen(run):
    """The chosen layout beside the fastest of the others, of runs in turn."""
    rows = []
    for line in layouts_of(run):
        of = line["params"]
        if not of.get("rivals"):
            continue
        fastest = max(of["rivals"], key=lambda rival: rival["chosen_over"])
        rows.append(
            [
                name_of(line),
                str(of["ranks"]),
                of["layout"],
                ms(line["value"]),
                ms_text(of["predicted_ms"]),
                signed(error(line, STEP)),
                fastest["layout"],
                ms(statistics.median(of["turns_ms"])),
                ms(statistics.median(fastest["turns_ms"])),
                signed(fastest["chosen_over"] - 1),
            ]
        )
    head = ["model", "ranks", "chosen layout", "step", "predicted at the start", "error"]
    head += ["fastest other", "in turn: chosen", "other", "chosen over other"]
    return table(head, rows)


def unequal(run):
    """Two ranks, one of which has half of a processor."""
    rows = [
        [
            line["params"]["variant"],
            line["params"]["layout"],
            ms(line["value"]),
            times(line["params"]["times_faster"]),
        ]
        for line in run.part("planning-unequal")
    ]
    return table(["plan", "layout", "step", "times faster than even"], rows)


FIGURES = {
    "planning-summary": summary,
    "planning-layouts": layouts,
    "planning-chosen": chosen,
    "planning-unequal": unequal,
}
