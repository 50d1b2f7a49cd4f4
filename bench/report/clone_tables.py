"""The times of the README's two commands, measured in a fresh clone (bench/clone)."""

from results import Missing, table

COMMANDS = {"first": "`bin/weft train recipes/fashion-mnist -n 2`", "second": "`./dev test`"}


def of(run, command, what):
    """The figure as a number; None if the command does not do this."""
    found = run.find("clone", command=command, what=what)
    return found[-1]["value"] if found else None


def clock(seconds):
    """Minutes and seconds as text; empty for None."""
    if seconds is None:
        return ""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left:02} s" if minutes else f"{left} s"


def count(value):
    return "" if value is None else f"{value:.0f}"


def gb(value):
    return "" if value is None else f"{value:.1f} GB"


def work(run, command):
    """What the command does after compiling: it trains, or it tests."""
    return of(run, command, "training" if command == "first" else "tests")


def rows(run):
    run.part("clone")  # it was measured
    for command, text in COMMANDS.items():
        times = [of(run, command, "libtorch"), of(run, command, "compiling"), work(run, command)]
        yield [text, *map(clock, [*times, of(run, command, "together")])]


def readme_en(run):
    try:
        head = ["from a fresh clone", "installing libtorch", "compiling", "training or tests"]
        lines = table([*head, "together"], list(rows(run)))
    except Missing:
        return "Both take minutes on two cores (`./dev bench publish clone` measures them)."
    of_machine = run.heads["clone"]["machine"]
    cores, memory = of_machine["cores"], of_machine["memory_gib"]
    where = f"Measured on {cores} virtual cores ({of_machine['cpu']}) with {memory} GiB of memory,"
    return f"{lines}\n\n{where}\nwithout a compiler cache."


def readme_zh(run):
    try:
        lines = table(["全新克隆", "安装 libtorch", "编译", "训练或测试", "合计"], list(rows(run)))
    except Missing:
        return "在两个核上，两条命令都需要若干分钟（用 `./dev bench publish clone` 测量）。"
    of_machine = run.heads["clone"]["machine"]
    cores, cpu, memory = (of_machine[key] for key in ("cores", "cpu", "memory_gib"))
    return f"{lines}\n\n测量环境：{cores} 个虚拟核（{cpu}），{memory} GiB 内存，没有编译缓存。"


def details(run):
    """Every figure of both commands, a row for each."""
    run.part("clone")
    kinds = (
        ("installing libtorch", "libtorch", clock),
        ("compiling", "compiling", clock),
        ("from the command to the first training step", "before training", clock),
        ("training", "training", clock),
        ("tests", "tests", clock),
        ("together", "together", clock),
        ("test entries", "number of tests", count),
        ("disk of the clone afterwards", "disk", gb),
    )
    body = [
        [text, *(shown(of(run, command, what)) for command in COMMANDS)]
        for text, what, shown in kinds
    ]
    return table(["", "first command", "second command"], body) + "\n\n" + where(run)


def where(run):
    head = run.heads["clone"]
    machine, torch = head["machine"], run.part("clone")[0]["params"]["torch"]
    return (
        f"Measured on {head['date']} at commit `{head['commit']}` with torch {torch} of the "
        f"package index,\non {machine['cores']} virtual cores ({machine['cpu']}) with "
        f"{machine['memory_gib']} GiB of memory.\nDebian's packages were installed, nothing was in "
        "a compiler cache, and nothing else ran."
    )


FIGURES = {
    "clone-readme": readme_en,
    "clone-readme-zh": readme_zh,
    "clone-details": details,
}
