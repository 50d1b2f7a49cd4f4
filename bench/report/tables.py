"""The tables and lists of the pages. Each is a function of a published run; FIGURES names them."""

import pathlib
import textwrap

import clone_tables
import curve_charts
import linear_tables
import planning_tables
import ps_tables
import recovery_tables
import strategy_tables
from results import Missing, against_alone, digits, mib, ms, percent, size_of, table, time_of, times

MIB = 1 << 20
NAMES = {
    "weft": "weft",
    "weft-net": "weft at `net`",
    "weft-prepared": "weft, prepared",
    "weft-ordinary": "weft, ordinary memory",
    "openmpi": "Open MPI 4",
    "openmpi-prepared": "Open MPI 4, persistent",
    "openmpi5": "Open MPI 5",
    "mpich": "MPICH",
    "gloo": "Gloo",
    "ideal": "bound",
}
MODELS = {
    ("mlp", "sgd"): "MLP 784-256-128-10, SGD",
    ("cnn", "sgd"): "CNN, SGD",
    ("resnet18", "sgd"): "ResNet-18, SGD",
    ("resnet18", "adamw"): "ResNet-18, AdamW",
}


def measured(run, *parts):
    """Links to the files of the parts."""
    lines = []
    for part in parts:
        if part in run.heads:
            lines.append(f"[{part}](../{run.files[part]})")
    return "Stored: " + ",\n".join(lines) + "." if lines else ""


def machine(run):
    """Where the parts that were measured with the collectives were measured."""
    file = run.files.get("all-reduce") or next(iter(run.files.values()))
    folder = pathlib.Path(file).parent
    parts = [part for part, file in run.files.items() if pathlib.Path(file).parent == folder]
    heads = [run.heads[part] for part in parts]
    v = heads[0]["versions"]
    return "\n".join(
        [
            *hardware(heads[0]),
            f"- Software: torch {v['torch']}, Open MPI {v['openmpi']} and {v['openmpi5']}, "
            f"MPICH {v['mpich']}, DeepSpeed {v['deepspeed']},",
            f"  {v['compiler']}.",
            when(heads),
        ]
    )


def machine_of_faults(run):
    """Each machine, with the parts that were measured on it."""
    of_faults = ("recovery", "faults", "random-kills", "goodput", "recovery-cost")
    parts = [part for part in of_faults if part in run.heads]
    if not parts:
        raise Missing("faults")
    by_machine = {}
    for part in parts:
        head = run.heads[part]
        by_machine.setdefault((head["machine"]["cpu"], head["versions"]["torch"]), []).append(part)
    lines = []
    for (_, torch), of_machine in by_machine.items():
        head = run.heads[of_machine[0]]
        of = f" of {listed(of_machine)}" if len(by_machine) > 1 else ""
        lines += hardware(head, of)
        torchft = f", torchft-nightly {head['versions']['torchft']}"
        peers = torchft if "recovery" in of_machine else ""
        text = f"- Software there: torch {torch}{peers}, {head['versions']['compiler']}."
        lines += textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([*lines, when([run.heads[part] for part in parts])])


def hardware(head, parts=""):
    of = head["machine"]
    text = (
        f"- Machine{parts}: {of['cores']} virtual cores of a shared server ({of['cpu']}), "
        f"{of['memory_gib']} GiB of memory, last-level cache of "
        f"{of['last_level_cache_mib']:.0f} MiB, Linux {of['kernel']}."
    )
    return textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def when(heads):
    days = sorted({one["date"] for one in heads})
    commits = dict.fromkeys(f"`{one['commit']}`" for one in heads)
    text = f"- weft at commit {listed(commits)}, measured on {listed(days)}."
    return textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def listed(words):
    """a, b and c"""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def by_size(run, part, op, vectors, ranks, impls):
    rows = []
    for size in run.values(part, "bytes"):
        cells = [
            time_of(run.value(part, "us", op=op, bytes=size, vectors=vectors, ranks=ranks, impl=i))
            for i in impls
        ]
        rows.append([size_of(size), *cells])
    return table(["size", *(NAMES[i] for i in impls)], rows)


PUBLIC = ["weft", "openmpi", "openmpi5", "mpich", "gloo", "ideal"]


def all_reduce(run):
    return by_size(run, "all-reduce", "all_reduce", "rewritten", 2, PUBLIC)


def all_reduce_in_place(run):
    return by_size(run, "all-reduce", "all_reduce", "in place", 2, PUBLIC)


def all_reduce_inside(run):
    impls = ["weft", "weft-prepared", "weft-net", "weft-ordinary", "openmpi-prepared"]
    return by_size(run, "all-reduce", "all_reduce", "rewritten", 2, impls)


def ordinary_memory(run):
    impls = ["weft-ordinary", "openmpi", "openmpi5", "mpich"]
    rows = []
    for cores in run.values("ordinary-memory", "cores"):
        for size in run.values("ordinary-memory", "bytes"):
            case = {"bytes": size, "vectors": "rewritten", "cores": cores}
            times = [run.value("ordinary-memory", "us", impl=i, **case) for i in impls]
            rows.append([cores, size_of(size), *map(time_of, times)])
    return table(["cores", "size", *(NAMES[i] for i in impls)], rows)


def all_reduce_4(run):
    return by_size(run, "all-reduce-4", "all_reduce", "rewritten", 4, PUBLIC)


def messages(run):
    return by_size(run, "messages", "ping_pong", "rewritten", 2, PUBLIC)


def messages_in_place(run):
    return by_size(run, "messages", "ping_pong", "in place", 2, PUBLIC)


def collectives(run):
    rows = []
    for op in run.values("collectives", "op"):
        vectors = "in place" if op == "barrier" else "rewritten"
        cells = [
            time_of(run.value("collectives", "us", op=op, vectors=vectors, impl=i)) for i in PUBLIC
        ]
        rows.append([op.replace("_", "-"), *cells])
    return table(["collective", *(NAMES[i] for i in PUBLIC)], rows)


def network(run):
    impls = ["weft", "openmpi", "gloo"]
    rows = []
    for size in run.values("network", "bytes"):
        cells = [
            time_of(run.value("network", "us", bytes=size, link="veth", impl=i)) for i in impls
        ]
        rows.append([size_of(size), *cells])
    return table(["size", *(NAMES[i] for i in impls)], rows)


def link(run):
    """A row with the share of the link's rate that each system reaches."""
    impls = ["weft", "openmpi", "gloo"]
    shares = [percent(run.value("network", "of line rate", impl=i)) for i in impls]
    return table(["", *(NAMES[i] for i in impls)], [["share of 1 Gbit/s", *shares]])


def training(run):
    impls = [
        "weft",
        "weft-alone",
        "pytorch-ddp",
        "pytorch-ddp-tuned",
        "pytorch-alone",
        "pytorch-alone-tuned",
    ]
    rows = []
    for (model, optimizer), name in MODELS.items():
        case = {"model": model, "optimizer": optimizer}
        rows.append([name, *(ms(run.value("training", "ms", impl=i, **case)) for i in impls)])
    head = ["model", "weft", "compute alone", "DDP", "DDP, tuned"]
    return table([*head, "PyTorch alone", "PyTorch alone, tuned"], rows)


FORMS = [
    ("compute alone, weft", "weft-alone"),
    ("compute alone, PyTorch", "pytorch-alone"),
    ("compute alone, PyTorch, fused AdamW", "pytorch-alone-tuned"),
    ("data parallel, weft", "weft"),
    ("data parallel, DDP", "pytorch-ddp"),
    ("data parallel, DDP, tuned", "pytorch-ddp-tuned"),
    ("ZeRO-1, weft", "weft-zero1"),
    ("ZeRO-1, DeepSpeed", "deepspeed-zero1"),
    ("ZeRO-2, weft", "weft-zero2"),
    ("ZeRO-3, weft", "weft-zero3"),
    ("ZeRO-3, FSDP2", "pytorch-fsdp2"),
    ("ZeRO-3, DeepSpeed", "deepspeed-zero3"),
]


def sharded(run):
    rows = []
    for name, impl in FORMS:
        cells = []
        for model in ("gpt-384", "gpt-128"):
            cells.append(ms(run.value("sharded", "ms", impl=impl, model=model)))
            ratio = against_alone(run, "sharded", impl, model=model)
            cells.append(times(ratio))
        rows.append([name, *cells])
    head = ["form", "GPT-384", "against alone", "GPT-128", "against alone"]
    return table(head, [row for row in rows if any(row[1:])])


def halves(run):
    """Compares the same work on one rank and on two."""
    rows = []
    one, two = (run.value("tensor", "ms", impl=i) for i in ("weft-one", "weft-tensor"))
    ratio = run.value("tensor", "times faster", impl="weft-tensor", against="weft-one")
    rows.append(["tensor parallelism, GPT of width 384", ms(one), ms(two), times(ratio)])
    for line in run.part("context"):
        if line["unit"] == "times faster than one rank":
            name = "context parallelism, GPT of width 512, 2,048 tokens"
            rows.append([name, ms(line["one_ms"]), ms(line["ms"]), times(line["value"])])
    return table(["form", "one rank", "two ranks", "times faster"], rows)


def context_memory(run):
    for line in run.part("context"):
        if line["unit"] == "of one rank's" and "held" in line["params"].get("what", ""):
            held, whole = line["bytes"] / MIB, line["one_bytes"] / MIB
            return (
                f"With context parallelism each rank holds {held:.0f} MiB of activations "
                f"instead of {whole:.0f} MiB."
            )
    return ""


def pipeline(run):
    schedules = {"gpipe": "GPipe", "1f1b": "1F1B", "zb_h1": "zero bubble H1"}
    schedules["zb_h2"] = "zero bubble H2"
    rows = []
    for name, title in schedules.items():
        cells = []
        for model in ("gpt-384", "gpt-128"):
            case = {"impl": f"weft-{name}", "model": model}
            cells.append(ms(run.value("pipeline", "ms", **case)))
            cells.append(percent(run.value("pipeline", share="bound / step", **case), 0))
            cells.append(percent(run.value("pipeline", share="idle", **case)))
        rows.append([title, *cells])
    columns = ["step", "of its bound", "idle"]
    return table(
        ["schedule", *(f"GPT-384: {c}" for c in columns), *(f"GPT-128: {c}" for c in columns)], rows
    )


def recompute(run):
    rows = []
    for line in run.part("recompute"):
        rows.append(
            [
                f"{line['params']['sequence']:,}",
                "yes" if line["params"]["dropout"] else "no",
                line["params"]["recompute"],
                times(line["value"]),
                mib(line["held_bytes"] / MIB),
                mib(line["peak_bytes"] / MIB),
            ]
        )
    head = ["positions", "dropout", "recomputation", "step time", "kept for backward", "peak"]
    return table(head, rows)


def memory_and_start(run):
    case = {"model": "resnet18", "optimizer": "adamw", "memory": "state"}
    rows = [
        [
            "weights, gradients and optimizer state of both ranks, ResNet-18, AdamW",
            *(mib(run.value("training", impl=i, **case)) for i in ("weft", "pytorch-ddp")),
        ],
        [
            "from the command to the first finished step, CNN",
            *(time_of(1e6 * run.value("startup", "s", impl=i)) for i in ("weft", "pytorch-ddp")),
        ],
        [
            "resident memory of a rank then",
            *(
                mib(run.value("startup", impl=i, memory="resident a rank"))
                for i in ("weft", "pytorch-ddp")
            ),
        ],
    ]
    return table(["what", "weft", "PyTorch DDP"], rows)


def accuracy(run):
    rows = []
    for line in run.part("accuracy"):
        rows.append([str(line["params"]["ranks"]), percent(line["value"], 2)])
    return table(["ranks", "accuracy"], rows)


def checkpoint(run):
    line = run.part("checkpoint")[0]
    stalls = [save["stall_ms"] for save in line["saves"]]
    listed = ", ".join(digits(stall) for stall in stalls)
    return (
        f"A checkpoint each minute cost {percent(line['value'], 2)} of the run: GPT of "
        f"`recipes/{line['params']['recipe']}`,\n{line['params']['ranks']} ranks, {line['steps']} "
        f"steps of {ms(line['median_ms'])}. Training stopped {listed} ms for the saves."
    )


def python_ddp(run):
    rows = []
    for views in (False, True):
        found = {
            line["params"]["what"]: line["value"]
            for line in run.part("python")
            if line["params"]["views"] == views
        }
        rows.append(
            [
                "gradients are views of buckets" if views else "defaults",
                ms(found.get("exposed weft")),
                ms(found.get("exposed gloo")),
                times(found.get("exposed, Gloo's over weft's")),
                ms(found.get("DDP's own, of both")),
            ]
        )
    head = ["DDP, ResNet-18", "over weft", "over Gloo", "times less", "DDP's own part"]
    return table(head, rows)


def choices(run):
    """The time of the chosen algorithm relative to the best one, at each point."""
    return [line["value"] for line in run.part("choice") if line["unit"] == "times the best"]


def choice(run):
    ratios = choices(run)
    good = sum(ratio <= 1.1 for ratio in ratios)
    return (
        f"At {good} of {len(ratios)} points ({percent(good / len(ratios))}) the chosen algorithm "
        f"took at most 1.1 times\nas long as the best one; at worst {digits(max(ratios))} times."
    )


PEERS = {
    "openmpi": "Open MPI 4",
    "openmpi5": "Open MPI 5",
    "mpich": "MPICH",
    "gloo": "Gloo",
    "pytorch-ddp": "DDP",
    "pytorch-ddp-tuned": "DDP, tuned",
    "pytorch-fsdp2": "FSDP2",
    "deepspeed-zero1": "DeepSpeed ZeRO-1",
    "deepspeed-zero3": "DeepSpeed ZeRO-3",
}
FORMS_OF_WEFT = {
    "weft": "",
    "weft-zero1": ", ZeRO-1",
    "weft-zero2": ", ZeRO-2",
    "weft-zero3": ", ZeRO-3",
}


def name_of(case):
    what = case.get("op", case.get("model", "")).replace("_", "-").replace("ping-pong", "message")
    size = f", {size_of(case['bytes'])}" if "bytes" in case and what != "barrier" else ""
    how = f", {case['vectors']}" if "vectors" in case and what != "barrier" else ""
    ranks = f", {case['ranks']} ranks" if case.get("ranks", 2) != 2 else ""
    over = ", TCP" if "link" in case else ""
    optimizer = ", AdamW" if case.get("optimizer") == "adamw" and what == "resnet18" else ""
    return what + optimizer + FORMS_OF_WEFT[case["impl"]] + over + size + how + ranks


def slower(run):
    """Every case where a peer was faster than weft's public API."""
    rows = {}
    for lines in run.lines.values():
        for line in lines:
            case = line.get("params", {})
            compared = line.get("unit") == "times faster" and case.get("against") in PEERS
            if compared and case["impl"] in FORMS_OF_WEFT and line["value"] < 0.97:
                row = rows.setdefault(name_of(case), dict.fromkeys(PEERS, ""))
                row[case["against"]] = times(1 / line["value"])
    if not rows:
        return "None."
    return table(["case", *PEERS.values()], [[name, *row.values()] for name, row in rows.items()])


def missed(run):
    rows = []
    for part in run.lines:
        for line in run.lines[part]:
            case = line.get("params", {})
            if case.get("good") is False:
                model = case.get("model", "").replace("gpt", "GPT")
                quantity = case["measured"].replace("weft-", "").replace("zb_", "zero bubble ")
                rows.append([model, quantity, f"{line['value']:.3f}", case["target"]])
    if "choice" in run.lines:
        ratios = choices(run)
        share = sum(ratio <= 1.1 for ratio in ratios) / len(ratios)
        if share < 0.95:
            what = "algorithms chosen over TCP, 4 ranks: share within 10 % of the best"
            rows.append(["", what, f"{share:.3f}", "at least 0.95"])
    return table(["model", "quantity", "measured", "target"], rows) if rows else "None."


def codecs_link(run):
    names = {"pytorch-ddp": "PyTorch DDP over Gloo, tuned"}
    steps = codec_steps(run)
    rows = []
    for impl, of_step in sorted(steps.items(), key=lambda item: -item[1]):
        rows.append([names.get(impl, f"`{impl}`"), ms(of_step), times(steps["none"] / of_step)])
    return table(["system or codec", "step", "times faster than none"], rows)


def codec_steps(run):
    """{codec: milliseconds of a step, the median over the rounds}"""
    steps = {}
    for line in run.part("codecs-link"):
        steps.setdefault(line["params"]["impl"], []).append(line["value"])
    return {impl: sorted(values)[len(values) // 2] for impl, values in steps.items()}


def codecs_accuracy(run):
    lines = run.part("codecs-accuracy")
    plain = next(line["value"] for line in lines if line["params"]["codec"] == "none")
    rows = []
    for line in lines:
        case = line["params"]
        points = f"{100 * (line['value'] - plain):+.2f}"
        rows.append(
            [f"`{case['codec']}`", percent(line["value"], 2), points, f"{case['loss']:.3f}"]
        )
    return table(["codec", "accuracy", "difference to none, points", "test loss"], rows)


def codecs_auto(run):
    links = {"host": "shared memory", "loopback": "TCP on one host", "1gbit": "1 Gbit/s"}
    rows = []
    for line in run.part("codecs-auto"):
        case = line["params"]
        model = "ResNet-18" if "resnet" in case["recipe"] else "CNN"
        decided = ", ".join(dict.fromkeys(case["decided"]))
        rows.append(
            [
                links[case["link"]],
                model,
                ms(case["none_ms"]),
                ms(case["auto_ms"]),
                digits(line["value"]),
                decided,
            ]
        )
    return table(["link", "model", "none", "auto", "auto / none", "decision in the rounds"], rows)


def codecs_time(run):
    steps = {line["params"]["codec"]: line["value"] for line in run.part("codecs-time")}
    of_step = codec_steps(run)
    steps["pytorch-ddp"] = steps.get("none")
    rows = []
    for impl, count in steps.items():
        name = "PyTorch DDP over Gloo, tuned" if impl == "pytorch-ddp" else f"`{impl}`"
        if count is None or impl not in of_step:
            rows.append([name, "not reached", "", ""])
            continue
        seconds = count * of_step[impl] / 1e3
        against = steps["pytorch-ddp"] * of_step["pytorch-ddp"] / 1e3 / seconds
        rows.append([name, str(count), f"{seconds:.0f} s", times(against)])
    rows.sort(key=lambda row: -float(row[2].split()[0]) if row[2] else 1)
    return table(["system or codec", "steps", "time", "times faster than PyTorch DDP"], rows)


def readme(run, head):
    cases = [("cnn", "sgd"), ("resnet18", "sgd"), ("resnet18", "adamw")]
    rows = []
    for model, optimizer in cases:
        of = {"model": model, "optimizer": optimizer}
        best = min(
            run.value("training", "ms", impl=i, **of) for i in ("pytorch-ddp", "pytorch-ddp-tuned")
        )
        cells = [run.value("training", "ms", impl=i, **of) for i in ("weft", "weft-alone")]
        rows.append([MODELS[model, optimizer], *map(ms, [*cells, best])])
    return table(head, rows)


def readme_en(run):
    return readme(
        run, ["training step, 2 ranks", "weft", "compute alone", "PyTorch DDP over Gloo, its best"]
    )


def readme_zh(run):
    head = ["训练步，2 个 rank", "weft", "仅计算", "PyTorch DDP（Gloo，最佳设置）"]
    return readme(run, head)


FIGURES = {
    "machine": machine,
    "machine-of-faults": machine_of_faults,
    "all-reduce": all_reduce,
    "all-reduce-in-place": all_reduce_in_place,
    "all-reduce-inside": all_reduce_inside,
    "all-reduce-4": all_reduce_4,
    "ordinary-memory": ordinary_memory,
    "collectives": collectives,
    "messages": messages,
    "messages-in-place": messages_in_place,
    "network": network,
    "link": link,
    "training": training,
    "sharded": sharded,
    "halves": halves,
    "context-memory": context_memory,
    "pipeline": pipeline,
    "recompute": recompute,
    "memory-and-start": memory_and_start,
    "accuracy": accuracy,
    "checkpoint": checkpoint,
    "python-ddp": python_ddp,
    "choice": choice,
    "slower": slower,
    "missed": missed,
    "codecs-link": codecs_link,
    "codecs-accuracy": codecs_accuracy,
    "codecs-auto": codecs_auto,
    "codecs-time": codecs_time,
    "readme": readme_en,
    "readme-zh": readme_zh,
    **clone_tables.FIGURES,
    **linear_tables.FIGURES,
    **ps_tables.FIGURES,
    **planning_tables.FIGURES,
    **recovery_tables.FIGURES,
    **strategy_tables.FIGURES,
    **curve_charts.FIGURES,
}
# The stored parts of a figure, if they are not the part of the same name.
SOURCES = {"halves": ("tensor", "context"), "planning": ("planning", "planning-unequal")}
for _name in (
    "clone",
    "all-reduce",
    "all-reduce-4",
    "ordinary-memory",
    "collectives",
    "messages",
    "network",
    "training",
    "sharded",
    "halves",
    "pipeline",
    "recompute",
    "accuracy",
    "checkpoint",
    "python",
    "choice",
    "startup",
    "codecs-link",
    "codecs-accuracy",
    "codecs-auto",
    "codecs-time",
    "recovery",
    "faults",
    "random-kills",
    "goodput",
    "recovery-cost",
    "strategies",
    "strategies-codecs",
    "strategies-link",
    "strategies-periods",
    "strategies-slow",
    "ps",
    "linear",
    "optimizers",
    "planning",
):
    _parts = SOURCES.get(_name, (_name,))
    FIGURES[f"source-{_name}"] = lambda run, parts=_parts: measured(run, *parts)
