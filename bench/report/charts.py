"""The charts of the pages, as SVG with a light and a dark theme."""

import html
import math

from results import against_alone, digits, size_of, time_of

STYLE = """text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px}
.title{font-size:15px;font-weight:600}.small{font-size:11.5px}.end{text-anchor:end}
.mid{text-anchor:middle}.line{fill:none;stroke-width:2.2;stroke-linejoin:round}
.paper{fill:#ffffff}.ink{fill:#1c2128}.dim{fill:#667080}.grid{stroke:#dfe4ea;stroke-width:1}
.mark{stroke:#1c2128;stroke-width:1.2;stroke-dasharray:4 3}
.s0{fill:#1f6fd1}.s1{fill:#d9731f}.s2{fill:#8a4fb0}.s3{fill:#2b8a57}.s4{fill:#8a94a3}
.s5{fill:#5b9ae4}.s6{fill:#9cc4f2}.s7{fill:#74bd97}
.l0{stroke:#1f6fd1}.l1{stroke:#d9731f}.l2{stroke:#8a4fb0}.l3{stroke:#2b8a57}.l4{stroke:#8a94a3}
@media (prefers-color-scheme:dark){.paper{fill:#12161c}.ink{fill:#e8ecf1}.dim{fill:#97a3b2}
.grid{stroke:#2c343f}.mark{stroke:#e8ecf1}
.s0{fill:#6aa9f5}.s1{fill:#f0a060}.s2{fill:#c592e4}.s3{fill:#6cc596}.s4{fill:#7c8794}
.s5{fill:#4580c8}.s6{fill:#2c5a94}.s7{fill:#3f8561}
.l0{stroke:#6aa9f5}.l1{stroke:#f0a060}.l2{stroke:#c592e4}.l3{stroke:#6cc596}.l4{stroke:#7c8794}}"""


class Picture:
    def __init__(self, width, height, label):
        self.width, self.height, self.label, self.parts = width, height, label, []

    def text(self, x, y, text, kind="ink", size=None):
        style = "" if size is None else f' style="font-size:{size:.1f}px"'
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{style}>{html.escape(text)}</text>'
        )

    def rect(self, x, y, width, height, kind):
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
            f'class="{kind}"/>'
        )

    def line(self, x1, y1, x2, y2, kind):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'
        )

    def path(self, points, kind):
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{text}" class="line {kind}"/>')

    def svg(self):
        label = html.escape(self.label, quote=True)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" aria-label="{label}">',
                f"<style>{STYLE}</style>",
                f'<rect width="{self.width}" height="{self.height}" class="paper"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def bars(title, groups, unit_of, mark=None):
    """A chart of horizontal bars. groups: (name, [(label, value, class)]). mark: (value, text) of a
    vertical line.
    """
    named = {kind: label for _, of in groups for label, _, kind in of}
    if any(named[kind] != label for _, of in groups for label, _, kind in of):
        raise ValueError(f"{title}: one color for two series")
    step, left, right, width = 20, 150, 70, 720
    rows = sum(len(of) for _, of in groups)
    height = 62 + rows * step + 34 * len(groups)
    picture = Picture(width, height, title)
    picture.text(16, 26, title, "title ink")
    most = max(value for _, of in groups for _, value, _ in of)
    scale = (width - left - right) / most
    line = left + mark[0] * scale if mark else 0

    def beside(x):
        """The position for a label of 36 pixels that does not cross the line."""
        return line + 5 if x <= line + 4 < x + 40 else x

    y = 46
    for name, of in groups:
        y += 18
        picture.text(16, y - 4, name, "small dim")
        for label, value, kind in of:
            picture.text(left - 8, y + 14, label, "small ink end")
            picture.rect(left, y + 3, max(1.5, value * scale), step - 5, kind)
            picture.text(beside(left + value * scale + 6), y + 14, unit_of(value), "small ink")
            y += step
        y += 16
    if mark:
        picture.line(line, 42, line, y - 10, "mark")
        picture.text(line, height - 8, mark[1], "small dim mid")
    return picture.svg()


def draw(picture, series, place, x_of_names):
    """The lines of the series, and their names from top to bottom, each at least one line below the
    previous one."""
    for _, kind, points in series:
        picture.path([place(x, y) for x, y in points], "l" + kind)
    y = 0
    for name, kind, points in sorted(series, key=lambda one: -one[2][-1][1]):
        y = max(y + 15, place(*points[-1])[1] + 4)
        picture.text(x_of_names, y, name, f"small s{kind}")


def curves(title, series, x_text, y_text):
    """Lines over logarithmic axes. series: (name, class, [(x, y)])."""
    width, height, left, right, top, bottom = 720, 420, 76, 96, 52, 56
    picture = Picture(width, height, title)
    picture.text(16, 26, title, "title ink")
    xs = [x for _, _, points in series for x, _ in points]
    ys = [y for _, _, points in series for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    first, last = math.log2(min(xs)), math.log2(max(xs))

    def place(x, y):
        across = (math.log2(x) - first) / (last - first)
        up = (math.log10(y) - low) / (high - low)
        return left + across * (width - left - right), height - bottom - up * (
            height - top - bottom
        )

    for power in range(low, high + 1):
        _, y = place(min(xs), 10.0**power)
        picture.line(left, y, width - right, y, "grid")
        picture.text(left - 8, y + 4, y_text(10.0**power), "small dim end")
    for x in sorted(set(xs)):
        at, _ = place(x, 10.0**low)
        picture.line(at, height - bottom, at, height - bottom + 4, "grid")
    for x in sorted(set(xs))[::2]:
        at, _ = place(x, 10.0**low)
        picture.text(at, height - bottom + 20, x_text(x), "small dim mid")
    draw(picture, series, place, width - right + 8)
    return picture.svg()


def all_reduce(run):
    shown = [("weft", "weft", "0"), ("openmpi5", "Open MPI 5", "1"), ("mpich", "MPICH", "2")]
    shown += [("gloo", "Gloo", "3"), ("ideal", "bound", "4")]
    series = []
    for impl, name, kind in shown:
        points = [
            (line["params"]["bytes"], line["value"])
            for line in run.find("all-reduce", "us", impl=impl, vectors="rewritten")
        ]
        if points:
            series.append((name, kind, points))
    title = "All-reduce of float32, 2 ranks in shared memory, vectors just written"
    return curves(title, series, size_of, time_of)


CASES = [
    ("CNN, SGD", {"model": "cnn", "optimizer": "sgd"}),
    ("ResNet-18, SGD", {"model": "resnet18", "optimizer": "sgd"}),
    ("ResNet-18, AdamW", {"model": "resnet18", "optimizer": "adamw"}),
]


def training(run):
    shown = [("weft", "weft", "s0"), ("pytorch-alone-tuned", "PyTorch alone, tuned", "s4")]
    shown += [("pytorch-ddp-tuned", "DDP, tuned", "s1"), ("pytorch-ddp", "DDP", "s2")]
    groups = []
    for name, case in CASES:
        of = [
            (label, against_alone(run, "training", impl, **case), kind)
            for impl, label, kind in shown
        ]
        groups.append((name, of))
    title = "Training step, 2 ranks, as a multiple of compute alone"
    return bars(title, groups, lambda value: f"{digits(value)}x", (1, "compute alone"))


def sharded(run):
    shown = [
        ("weft", "weft, data parallel", "s0"),
        ("weft-zero1", "weft, ZeRO-1", "s5"),
        ("weft-zero3", "weft, ZeRO-3", "s6"),
        ("pytorch-ddp-tuned", "DDP, tuned", "s1"),
        ("pytorch-fsdp2", "FSDP2", "s2"),
        ("deepspeed-zero1", "DeepSpeed ZeRO-1", "s3"),
        ("deepspeed-zero3", "DeepSpeed ZeRO-3", "s7"),
    ]
    groups = []
    for name, model in (
        ("GPT of width 384, 6 layers", "gpt-384"),
        ("width 128, 4 layers", "gpt-128"),
    ):
        of = [
            (label, against_alone(run, "sharded", impl, model=model), kind)
            for impl, label, kind in shown
        ]
        groups.append((name, [bar for bar in of if bar[1]]))
    title = "Training step of a GPT, AdamW, 2 ranks, as a multiple of compute alone"
    return bars(title, groups, lambda value: f"{digits(value)}x", (1, "compute alone"))


def front(run, title, alone_text):
    """The chart of the front page. It shows DDP with its better settings."""
    groups = []
    for name, case in CASES:
        ddp = min(
            against_alone(run, "training", impl, **case)
            for impl in ("pytorch-ddp", "pytorch-ddp-tuned")
        )
        ours = against_alone(run, "training", "weft", **case)
        groups.append((name, [("weft", ours, "s0"), ("PyTorch DDP", ddp, "s1")]))
    return bars(title, groups, lambda value: f"{digits(value)}x", (1, alone_text))


def front_en(run):
    return front(run, "Training step, 2 ranks, as a multiple of compute alone", "compute alone")


def front_zh(run):
    return front(run, "训练步（2 个 rank），以仅计算为 1", "仅计算")


CHARTS = {
    "bench-readme.svg": front_en,
    "bench-readme-zh.svg": front_zh,
    "bench-all-reduce.svg": all_reduce,
    "bench-training.svg": training,
    "bench-sharded.svg": sharded,
}
