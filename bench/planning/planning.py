#!/usr/bin/env python3
"""Compares weft's predictions with training on this machine, and prints JSON lines.

    bench/planning/planning.py [--weft build/release/bin/weft] [--short] [CASE ...]

"layouts": trains GPT-128, GPT-384, ResNet-18 and a ViT in 12 layouts over 2 and 4 ranks. Each line
has the step time, the peak memory of a process and the traffic of a rank, beside a prediction: of
`weft plan predict` from profiles that were measured before, or, with --live, of plan = "predict",
which measures machine, blocks and steps of replicas when a training starts. The layout that plan =
"auto" chooses is trained beside the others, and then in turn with the two fastest of them. Layouts
whose losses differ are not measured.

"unequal": a control group (cgroup) gives the second of two ranks half of a processor. Trains with
equal shares of the batch, with shares by speed, and with plan = "auto". Needs root.

--short: one round of short runs, to try the commands."""

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

import cases
import slow_rank
import training

GIB = 1 << 30
# Losses that are compared. Batch normalization over few samples amplifies rounding.
VERIFIED, VERIFIED_NORMALIZED = 8, 4
TOLERANCE = 1e-3  # of losses, relative
PROFILE_S = 300
SLOW_BATCH = 48  # of GPT-128: enough samples for shares of a third
SLOW_SHARE = 0.5
SLOW_RUN = 6  # times as long as other runs: shares of the batch follow the speed
NAMES = ("layouts", "unequal")
AXES = ("dp", "fsdp", "tp", "pp", "cp", "ep")
RIVALS = 2  # layouts that are trained in turn with a chosen one
TURNS = 5
# Keys that a plan sets.
PLANNED = {"train": ("recompute", "balance"), "parallel": None}


def warn(text):
    print(f"warning: {text}", file=sys.stderr, flush=True)


def run_weft(args, *words, given=None):
    command = [args.weft, *words]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PROFILE_S)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: {training.last_line(ran.stderr)}")
    return ran.stdout


def tell(case, params, value, unit, rounds):
    params = {"case": case, **params}
    line = {"bench": "planning", "params": params, "value": value, "unit": unit}
    print(json.dumps(line | {"runs": len(rounds), "rounds": rounds}), flush=True)


def write_inputs(folder):
    """An empty recipe, and a text of some pages for the models of text."""
    (folder / "bench.toml").write_text("")
    words = ["rank", "shard", "stage", "batch", "gradient", "weight", "layer", "step", "loss"]
    lines, state = [], 1
    for _ in range(20_000):
        state = (1103515245 * state + 12345) % (1 << 31)
        lines.append(" ".join(words[(state >> shift) % len(words)] for shift in range(4, 28, 4)))
    (folder / "text.txt").write_text(".\n".join(lines))


def profile_machine(args, ranks, file):
    run_weft(args, "plan", "profile", "-n", str(ranks), "-o", str(file))
    return str(file)


def profile_blocks(args, model, keys, recipe, file):
    """One rank for each processor, as far as two are used."""
    words = ["-n", "2", "--batches", ",".join(map(str, model.batches)), "-o", str(file)]
    run_weft(args, "plan", "profile", *words, *training.settings(keys), recipe)
    return str(file)


def predictions(args, scenarios):
    lines = "\n".join(json.dumps(scenario) for scenario in scenarios)
    answers = run_weft(args, "plan", "predict", "-", given=lines)
    return [json.loads(answer) for answer in answers.splitlines()]


def predicted_params(answer):
    """The figures of an answer of weft plan predict."""
    traffic = answer.get("traffic_gib")
    return {
        "predicted_ms": 1e3 * answer["step_s"],
        "predicted_memory_mib": 1024 * answer["memory_gib"],
        "predicted_traffic_mib": None if traffic is None else 1024 * traffic,
        "parts": answer["parts"],
    }


def planned_params(log):
    """The figures of the line that a planned run logs."""
    seconds, memory, traffic = (
        logged(log, "plan", field) for field in ("step_s", "memory_gib", "bytes")
    )
    return {
        "predicted_ms": 1e3 * float(seconds) if seconds else None,
        "predicted_memory_mib": 1024 * float(memory) if memory else None,
        "predicted_traffic_mib": float(traffic) / 2**20 if traffic else None,
    }


def chosen_keys(config):
    """The keys that plan = "auto" has set, from the configuration of its run."""
    keys = []
    for table, names in PLANNED.items():
        for name, value in config[table].items():
            if (names is None or name in names) and name != "plan":
                keys.append(f"{table}.{name}={json.dumps(value)}")
    return keys


def logged(log, line, field):
    """The field of a line of the log: plan layout="dp 2" step_s=0.1; None: there is none."""
    for text in log.splitlines():
        if f" {line} " not in f" {text} " or f"{field}=" not in text:
            continue
        rest = text.split(f"{field}=", 1)[1]
        return rest[1:].split('"')[0] if rest.startswith('"') else rest.split()[0]
    return None


def layout_of(config):
    """What makes two runs the same layout, from a run's configuration."""
    axes = config["parallel"]
    parts = {axis: axes[axis] for axis in AXES} | {"micro_batches": axes["micro_batches"] or 1}
    if axes["fsdp"] > 1:
        parts["zero_stage"] = axes["zero_stage"]
    if axes["pp"] > 1:
        parts |= {key: axes[key] for key in ("schedule", "cuts", "micro_batches")}
    return parts | {key: config["train"][key] for key in ("recompute", "balance")}


class Case:
    """A layout of a model that is trained in every round."""

    def __init__(self, ranks, name, keys):
        self.ranks, self.name, self.keys = ranks, name, keys
        self.runs, self.params, self.layout = [], {}, None

    def train(self, args, bench, seconds):
        keys = [*bench.keys, *self.keys]
        command = training.command_of(args.weft, bench.recipe, keys, self.ranks)
        return training.train([command], bench.model.batch, seconds)

    def step_ms(self):
        return 1e3 * statistics.median(run.step_s for run in self.runs)

    def medians(self):
        """Step time in ms, memory and traffic in MiB."""
        traffic = [run.traffic for run in self.runs if run.traffic is not None]
        return (
            self.step_ms(),
            statistics.median(run.memory for run in self.runs) / 2**20,
            statistics.median(traffic) / 2**20 if traffic else None,
        )


def samples_at_once(model, ranks, config):
    """Samples that a rank computes at once: of a micro-batch."""
    axes = config["parallel"]
    stages = axes["pp"]
    replicas = ranks // (axes["tp"] * stages * axes["cp"])
    passes = axes["micro_batches"] or (4 * stages if stages > 1 else 1)
    return model.batch // replicas // passes


def differs(losses, reference, tolerance):
    """The first of the compared steps whose losses differ; None if none does."""
    for step, (one, other) in enumerate(zip(losses, reference)):
        if not abs(one - other) <= tolerance * abs(other):
            return step
    return None


def in_turns(cases, turns):
    """All cases in each turn, each time from another one on."""
    for turn in range(turns):
        for i in range(len(cases)):
            yield cases[(i + turn) % len(cases)]


class ModelBench:
    """All layouts of one model."""

    def __init__(self, args, model, folder, clusters):
        self.args, self.model = args, model
        self.recipe = str(folder / "bench.toml")
        self.keys = cases.recipe_of(model, folder / "text.txt")
        self.cases = [
            Case(layout.ranks, layout.name, cases.keys_of(model, layout))
            for layout in cases.layouts_of(model)
        ]
        if not args.live:
            self.predict(folder, clusters)
        self.cases += [case for ranks in (2, 4) if (case := self.planned(ranks))]

    def predict(self, folder, clusters):
        """From profiles of the machine and of the model's blocks."""
        model = self.model
        file = folder / f"{model.name}.toml"
        profile = profile_blocks(self.args, model, self.keys, self.recipe, file)
        scenarios = [
            cases.scenario_of(model, layout, clusters[layout.ranks], profile)
            for layout in cases.layouts_of(model)
        ]
        for case, answer in zip(self.cases, predictions(self.args, scenarios)):
            if "error" in answer:
                warn(f"{model.name}, {case.name}: no prediction: {answer['error']}")
            else:
                case.params |= predicted_params(answer)

    def planned(self, ranks):
        """The layout that plan = "auto" chooses."""
        asking = Case(ranks, "auto", ['parallel.plan="auto"'])
        try:
            run = asking.train(self.args, self, seconds=1)
        except training.Failed as error:
            warn(f"{self.model.name}, {ranks} ranks, plan = \"auto\": {error}")
            return None
        case = Case(ranks, logged(run.log, "plan", "layout") or "auto", chosen_keys(run.config))
        case.params = {"chosen": True, **planned_params(run.log)}
        case.params["memory_mib"] = run.memory / 2**20
        case.params["planned_in_s"] = float(logged(run.log, "plan", "planned_in_s") or 0)
        return case

    def first_losses(self, case):
        """With --live, the run also predicts its step."""
        live = self.args.live and "chosen" not in case.params
        more = ['parallel.plan="predict"'] if live else []
        run = Case(case.ranks, case.name, [*case.keys, *more]).train(self.args, self, seconds=0)
        if live:
            case.params |= planned_params(run.log)
            # What the measurements leave in the process counts in both.
            case.params["memory_mib"] = run.memory / 2**20
        return run

    def alike(self, case, config):
        """Layouts with equal keys have equal losses."""
        return samples_at_once(self.model, case.ranks, config) if self.model.normalizes else None

    def verify(self):
        """Leaves out layouts whose losses differ from those of the first one."""
        kept, references = [], {}
        for case in self.cases:
            name = f"{self.model.name}, {case.ranks} ranks, {case.name}"
            try:
                run = self.first_losses(case)
            except training.Failed as error:
                warn(f"{name}: not measured: {error}")
                continue
            losses = run.losses
            reference = references.setdefault(self.alike(case, run.config), losses)
            count = VERIFIED_NORMALIZED if self.model.normalizes else VERIFIED
            if (step := differs(losses[:count], reference[:count], TOLERANCE)) is not None:
                warn(
                    f"{name}: not measured: the loss of step {step + 1} is {losses[step]:.5f}, and "
                    f"{reference[step]:.5f} in the first layout"
                )
                continue
            case.layout = layout_of(run.config)
            kept.append(case)
        self.cases = kept

    def run(self, case):
        try:
            return case.train(self.args, self, self.args.seconds)
        except training.Failed as error:
            sys.exit(f"{self.model.name}, {case.ranks} ranks, {case.name}: {error}")

    def measure(self):
        for case in in_turns(self.cases, self.args.rounds):
            case.runs.append(self.run(case))
        for case in self.cases:
            if "chosen" in case.params:
                self.compare(case)

    def compare(self, chosen):
        """Trains a chosen layout in turn with the fastest others. The speed of the machine changes
        between runs, so the ratios of a turn count."""
        others = [
            case
            for case in self.cases
            if case.ranks == chosen.ranks and case.layout != chosen.layout
        ]
        rivals = sorted(others, key=Case.step_ms)[:RIVALS]
        turns = {case: [] for case in (chosen, *rivals)}
        for case in in_turns(list(turns), self.args.turns):
            turns[case].append(1e3 * self.run(case).step_s)
        told = []
        for rival in rivals:
            over = statistics.median(a / b for a, b in zip(turns[chosen], turns[rival]))
            told.append({"layout": rival.name, "turns_ms": turns[rival], "chosen_over": over})
        chosen.params |= {"turns_ms": turns[chosen], "rivals": told}

    def tell(self):
        for case in self.cases:
            step_ms, memory, traffic = case.medians()
            params = {"model": self.model.name, "ranks": case.ranks, "layout": case.name}
            params |= {"memory_mib": memory, "traffic_mib": traffic} | case.params
            params["steps"] = min(run.steps for run in case.runs)
            rounds = [1e3 * run.step_s for run in case.runs]
            tell("layouts", params, step_ms, "ms a step", rounds)


def layouts(args, folder):
    clusters = {}
    for ranks in () if args.live else (2, 4):
        clusters[ranks] = profile_machine(args, ranks, folder / f"machine-{ranks}.toml")
    for model in cases.MODELS:
        if model.name not in args.models:
            continue
        bench = ModelBench(args, model, folder, clusters)
        bench.verify()
        bench.measure()
        bench.tell()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train_unequal(args, recipe, keys, processes):
    """Two ranks, the second one in the group."""
    command = training.command_of(args.weft, recipe, keys)
    here = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    here |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**here, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
    commands = [command, slow_rank.joined(command, processes)]
    return training.train(commands, SLOW_BATCH, SLOW_RUN * args.seconds, environments)


def unequal(args, folder):
    model, recipe = cases.MODELS[0], str(folder / "bench.toml")
    keys = [*cases.recipe_of(model, folder / "text.txt"), f"train.batch={SLOW_BATCH}"]
    variants = {
        "even": ["parallel.dp=2"],
        "shares by speed": ["parallel.dp=2", 'train.balance="speed"'],
        "auto": ['parallel.plan="auto"'],
    }
    runs = {name: [] for name in variants}
    try:
        with slow_rank.group_of(SLOW_SHARE) as processes:
            for _ in range(args.rounds):
                for name, more in variants.items():
                    runs[name].append(train_unequal(args, recipe, [*keys, *more], processes))
    except slow_rank.Impossible as error:
        sys.exit(f"planning: unequal ranks cannot be measured here: {error}")
    except training.Failed as error:
        sys.exit(f"planning: unequal ranks: {error}")
    for name, of in runs.items():
        params = {"model": model.name, "ranks": 2, "variant": name, "share": SLOW_SHARE}
        params["layout"] = logged(of[-1].log, "plan", "layout") or "dp 2"
        ratios = [even.step_s / run.step_s for even, run in zip(runs["even"], of)]
        params["times_faster"] = statistics.median(ratios)
        rounds = [1e3 * run.step_s for run in of]
        tell("unequal", params, statistics.median(rounds), "ms a step", rounds)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="layouts, unequal; default: both")
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--models", default=" ".join(model.name for model in cases.MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=TURNS, help="of a chosen layout and others")
    parser.add_argument("--seconds", type=float, default=1.5, help="of the steps of a run")
    parser.add_argument(
        "--live",
        action="store_true",
        help='predictions of plan = "predict"',
    )
    parser.add_argument("--short", action="store_true", help="one round of short runs")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(NAMES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    args.models = args.models.split()
    if unknown := set(args.models) - {model.name for model in cases.MODELS}:
        parser.error(f"--models: there is no {', '.join(sorted(unknown))}")
    if args.short:
        args.rounds, args.turns, args.seconds = 1, 1, 1
    args.weft = str(pathlib.Path(args.weft).resolve())
    with tempfile.TemporaryDirectory(prefix="weft-planning-") as place:
        folder = pathlib.Path(place)
        write_inputs(folder)
        for name in args.cases or NAMES:
            (layouts if name == "layouts" else unequal)(args, folder)


if __name__ == "__main__":
    main()
