"""The convergence curves of docs/strategies.md and docs/optimizers.md: a small chart for each rule,
beside the curve of a base."""

from charts import Picture
from results import Missing, percent
from strategy_tables import name_of, of_case

BY_TIME = ("second", "accuracy", lambda value: f"{100 * value:.0f} %", 0.8, None)
COLUMNS, WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 3, 230, 124, 62, 72, 52, 66
SMALL, LETTER, END_WIDTH = 11.5, 6.6, 62  # size of a name, widths of its letters and of the value


def panels(title, lines, axes):
    """lines: (name, text at the end, points); the first one is the base, which each chart shows in
    gray. axes: names of both, text of a value of y, and the least and the largest y that are shown;
    None: that of the points."""
    x_name, y_name, y_text, low, high = axes
    values = [y for _, _, points in lines for _, y in points]
    low = min(values) if low is None else low
    high = max(values) if high is None else high
    shown = [
        (name, end, [(x, y) for x, y in points if low <= y <= high]) for name, end, points in lines
    ]
    most = max(x for _, _, points in shown for x, _ in points)
    rows = -(-(len(shown) - 1) // COLUMNS)
    width = LEFT + COLUMNS * (WIDTH + GAP_X)
    picture = Picture(width, TOP + 12 + rows * (HEIGHT + GAP_Y), title)
    picture.text(16, 26, title, "title ink")
    picture.text(16, 45, f"{y_name} by {x_name}; gray: {shown[0][0]}", "small dim")
    for i, one in enumerate(shown[1:]):
        left = LEFT + i % COLUMNS * (WIDTH + GAP_X)
        top = TOP + 12 + i // COLUMNS * (HEIGHT + GAP_Y)
        panel(picture, (left, top), (shown[0], one), (most, low, high, y_text))
    return picture.svg()


def panel(picture, corner, lines, scale):
    (left, top), (base, (name, end, points)), (most, low, high, y_text) = corner, lines, scale

    def place(x, y):
        return left + x / most * WIDTH, top + HEIGHT - (y - low) / (high - low) * HEIGHT

    for value in (low, (low + high) / 2, high):
        _, y = place(0, value)
        picture.line(left, y, left + WIDTH, y, "grid")
        if left == LEFT:
            picture.text(left - 6, y + 4, y_text(value), "small dim end")
    for value, kind in ((0, "small dim"), (most, "small dim end")):
        x, _ = place(value, low)
        picture.text(x, top + HEIGHT + 15, f"{value:.0f}", kind)
    picture.path([place(x, y) for x, y in base[2]], "l4")
    picture.path([place(x, y) for x, y in points], "l0")
    fits = (WIDTH - END_WIDTH) / (LETTER * len(name))
    picture.text(left, top - 10, name, "small ink", SMALL * fits if fits < 1 else None)
    picture.text(left + WIDTH, top - 10, end, "small dim end")


def ends_of(lines):
    return [(name_of(line).strip("`"), percent(line["value"], 2)) for line in lines]


def at_s(line, part):
    """When the points of the curve were reached. Older runs do not have it."""
    if not line["params"].get("at_s"):
        raise Missing(part)
    return line["params"]["at_s"]


def strategies_by_step(run):
    lines = of_case(run, "accuracy")
    curves = [line["params"]["curve"] for line in lines]
    shown = [(*end, curve) for end, curve in zip(ends_of(lines), curves)]
    ranks = lines[0]["params"]["ranks"]
    title = f"Test accuracy of recipes/fashion-mnist on {ranks} ranks, by step"
    return panels(title, shown, ("step", *BY_TIME[1:]))


def by_time(lines, part):
    return [
        (*end, [(s, value) for s, (_, value) in zip(at_s(line, part), line["params"]["curve"])])
        for end, line in zip(ends_of(lines), lines)
    ]


def strategies_by_time(run):
    lines = of_case(run, "accuracy")
    title = "Test accuracy of recipes/fashion-mnist by time, 4 ranks on 2 cores"
    return panels(title, by_time(lines, "strategies"), BY_TIME)


def slow_by_time(run):
    lines = of_case(run, "slow", "strategies-slow")
    shown = [
        (line["params"]["rule"], percent(line["params"]["accuracy"], 2), points)
        for line, (_, _, points) in zip(
            lines, by_time([{**line, "value": 0} for line in lines], "strategies-slow")
        )
    ]
    title = "Test accuracy by time, one of 4 workers four times slower"
    return panels(title, shown, BY_TIME)


def optimizers_by_step(run):
    lines = of_case(run, "optimizers", "optimizers")
    shown = []
    for line in lines:
        of = line["params"]
        losses = [
            (step, loss) for (step, _), loss in zip(of["curve"], of["losses"]) if loss is not None
        ]
        shown.append((of["rule"], f"{of['loss']:.3f}", losses))
    title = "Test loss of recipes/fashion-mnist by step"
    return panels(title, shown, ("step", "loss", lambda value: f"{value:.2f}", None, 0.6))


def optimizers_by_time(run):
    lines = of_case(run, "optimizers", "optimizers")
    title = "Test accuracy of recipes/fashion-mnist by time, 2 ranks"
    return panels(title, by_time(lines, "optimizers"), BY_TIME)


CHARTS = {
    "strategies.svg": strategies_by_step,
    "strategies-time.svg": strategies_by_time,
    "strategies-slow-time.svg": slow_by_time,
    "optimizers.svg": optimizers_by_step,
    "optimizers-time.svg": optimizers_by_time,
}


def picture_of(name, text):
    """A figure of a page: the picture, once it can be drawn from the stored runs."""

    def figure(run):
        CHARTS[name](run)
        return f"![{text}](pictures/{name})"

    return figure


FIGURES = {
    "chart-strategies": picture_of(
        "strategies.svg", "Test accuracy by step, a chart for each rule"
    ),
    "chart-strategies-time": picture_of(
        "strategies-time.svg", "Test accuracy by time, a chart for each rule"
    ),
    "chart-strategies-slow-time": picture_of(
        "strategies-slow-time.svg", "Test accuracy by time with a slow worker"
    ),
    "chart-optimizers": picture_of("optimizers.svg", "Test loss by step, for each optimizer"),
    "chart-optimizers-time": picture_of(
        "optimizers-time.svg", "Test accuracy by time, for each optimizer"
    ),
}
