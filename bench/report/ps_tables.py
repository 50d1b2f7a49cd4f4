"""The tables of docs/parameter-server-results.md, each a function of the published runs."""

from results import digits, table, times

NAMES = {
    "weft": ("weft", "shared memory"),
    "weft-2-servers": ("weft, 2 servers", "shared memory"),
    "weft-2-servers-backup": ("weft, 2 servers with backups", "shared memory"),
    "weft-tcp": ("weft", "TCP"),
    "weft-tcp-bf16": ("weft, bf16 both ways", "TCP"),
    "weft-tcp-int8": ("weft, int8 pushed, bf16 pulled", "TCP"),
    "torch-rpc": ("torch.distributed.rpc", "its choice within a host"),
    "torch-rpc-tcp": ("torch.distributed.rpc", "TCP"),
}


def rate(value):
    """A number a second."""
    if value is None:
        return ""
    return f"{digits(value / 1e6)} M" if value >= 1e6 else f"{value:.0f}"


def ratio(run, op, impl):
    found = [
        line["value"]
        for line in run.part("ps")
        if line["unit"] == "times faster"
        and (line["params"]["op"], line["params"]["impl"]) == (op, impl)
    ]
    return times(found[0] if found else None)


def value(run, op, impl):
    found = [
        line["value"]
        for line in run.part("ps")
        if "against" not in line["params"]
        and (line["params"]["op"], line["params"]["impl"]) == (op, impl)
    ]
    return found[0] if found else None


def rows_of(run, *ops):
    rows = []
    for impl, names in NAMES.items():
        if value(run, ops[0], impl) is None:
            continue
        cells = [(rate(value(run, op, impl)), ratio(run, op, impl)) for op in ops]
        rows.append([*names, *(text for pair in cells for text in pair)])
    return rows


def updates(run):
    head = ["participant", "transport", "updates a second", "times torch RPC"]
    return table(head, rows_of(run, "update"))


def rows(run):
    head = ["participant", "transport", "rows pulled a second", "times torch RPC"]
    return table([*head, "rows pushed a second", "times torch RPC"], rows_of(run, "pull", "push"))


FIGURES = {"ps-updates": updates, "ps-rows": rows}
