#!/usr/bin/env python3
"""Measures the time to a relative duality gap on generated sparse data: weft, LIBLINEAR and
scikit-learn, in interleaved rounds (bench/README.md).

    ./dev bench linear
    ./dev bench linear --losses hinge --rows 100000 --rounds 3 --json

1. weft solves each problem to a gap of 1e-7. Its dual objective D bounds the optimum from below.
2. Each participant gets the smallest budget (LIBLINEAR: tolerance, SGD and Hogwild!: epochs) with
   which (P - D) / P reaches --gap. weft's CoCoA+ stops by its own certificate.
3. All objectives must be equal to 1e-3, and none may be below D. Else nothing is measured.
4. In a round, each participant trains once. The first one changes from round to round.

Times are those of the training call, on data in memory. A ratio is the median of the ratios within
each round."""

import argparse
import importlib.util
import json
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LOSSES = ("logistic", "hinge", "squared-hinge")
TOLERANCES = (
    100, 50, 20, 10, 7, 5, 3, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 1e-4, 1e-5,
)
EPOCHS = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90)
REFERENCE_GAP = 1e-7
EQUAL = 1e-3
# Participants whose result differs from run to run. A budget must reach the gap in all trials.
VARYING, TRIALS = ("weft-hogwild-2", "weft-hogwild-2-locks", "liblinear-dual"), 3
ANSWER_SECONDS = 1800

# impl: (ranks, command) of weft's participants. A budget fills in "epochs".
COCOA = {"rule": "cocoa+"}
HOGWILD = {"rule": "hogwild"}
LAST_STEP = 0.01  # Hogwild!: step of the last epoch, as a part of that of the first one
WEFT = {
    "weft-1": (1, COCOA),
    "weft-2": (2, COCOA),
    "weft-hogwild-1": (1, HOGWILD),
    "weft-hogwild-2": (1, {**HOGWILD, "threads": 2}),
    "weft-hogwild-2-locks": (1, {**HOGWILD, "threads": 2, "cluster_size": 0, "locks": "rows"}),
}
# impl: (module, budgets) of the peers.
PEERS = {
    "liblinear-dual": ("liblinear", TOLERANCES),
    "liblinear-primal": ("liblinear", TOLERANCES),
    "sklearn-liblinear": ("sklearn", TOLERANCES),
    "sklearn-sgd": ("sklearn", EPOCHS),
}


class Failed(Exception):
    """A participant gave an error, ended, or did not answer in time."""


def warn(text):
    print(f"warning: {text}", file=sys.stderr)


class Process:
    """A participant's process. It sleeps in a read between commands."""

    def __init__(self, name, words):
        self.name = name
        self.process = subprocess.Popen(
            list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command):
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} has ended") from None
        if not select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise Failed(f"{self.name} gave no answer in {ANSWER_SECONDS} s")
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        if answer.get("verified") is False:
            raise Failed(f"{self.name}: its objective is not that of its weights")
        return answer

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Participant:
    def __init__(self, impl, process, command=None, budgets=(None,)):
        self.impl, self.process, self.command, self.budgets = impl, process, command, budgets

    def train(self, loss, options, budget):
        command = {"loss": loss, "c": options.c}
        if self.command is None:
            return self.process.ask({**command, "budget": budget})
        command |= self.command
        if budget is None:
            return self.process.ask({**command, "gap": options.gap})
        command |= {"epochs": budget, "decay": LAST_STEP ** (1 / budget)}
        return self.process.ask({**command, "step": 2 if loss == "logistic" else 1})


class Participants:
    """All participants, with one process for each size of weft and for each peer."""

    def __init__(self, options, folder):
        self.processes, self.all = {}, []
        shape = [f"rows={options.rows}", f"columns={options.columns}", f"entries={options.entries}"]
        binary = options.bin / "weft_bench_linear"
        subprocess.run([binary, *shape, f"write={folder}"], check=True)
        for impl, (ranks, command) in WEFT.items():
            if impl in options.impls:
                process = self.start(f"weft of {ranks}", [binary, *shape, f"ranks={ranks}"])
                budgets = EPOCHS if command["rule"] == "hogwild" else (None,)
                self.all.append(Participant(impl, process, command, budgets))
        self.reference = self.start("weft of 1", [binary, *shape, "ranks=1"])
        for impl, (module, budgets) in PEERS.items():
            if impl not in options.impls:
                continue
            if importlib.util.find_spec(module) is None:
                warn(f"left out: {impl}: no module {module} (./dev bench setup installs it)")
                continue
            process = self.start(impl, [sys.executable, HERE / "peers.py", impl, folder])
            self.all.append(Participant(impl, process, budgets=budgets))

    def start(self, name, words):
        if name not in self.processes:
            self.processes[name] = Process(name, words)
        return self.processes[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.end()


def gap_of(objective, dual):
    return (objective - dual) / objective


def choose_budget(participant, loss, options, dual):
    """(the smallest budget that reaches the gap, its objective); None if none does."""
    for budget in participant.budgets:
        objective = max(
            participant.train(loss, options, budget)["objective"]
            for _ in range(TRIALS if participant.impl in VARYING else 1)
        )
        if gap_of(objective, dual) <= options.gap:
            return budget, objective
    return None


def verify(participants, loss, options):
    """The participants that reach the gap, with their budgets, and the dual objective."""
    command = {**COCOA, "loss": loss, "c": options.c, "gap": REFERENCE_GAP, "max_passes": 100_000}
    reference = participants.reference.ask(command)
    dual, best = reference["dual"], reference["objective"]
    chosen = {}
    for participant in participants.all:
        try:
            found = choose_budget(participant, loss, options, dual)
        except Failed as failure:
            warn(f"left out for {loss}: {failure}")
            continue
        if found is None:
            most = participant.budgets[-1]
            warn(f"left out for {loss}: {participant.impl} does not reach the gap with {most}")
            continue
        budget, objective = found
        if abs(objective - best) > EQUAL * best or objective < dual - 1e-9 * best:
            raise Failed(f"{participant.impl} has the objective {objective} for {loss}, not {best}")
        chosen[participant] = budget
    return chosen, dual


def measure(chosen, loss, options, dual):
    """Answers of each participant, by round."""
    answers = {participant: [] for participant in chosen}
    order = list(chosen)
    for turn in range(options.rounds):
        first = turn % max(1, len(order))
        for participant in order[first:] + order[:first]:
            answer = participant.train(loss, options, chosen[participant])
            answer["gap"] = gap_of(answer["objective"], dual)
            answers[participant].append(answer)
    for participant, found in answers.items():
        if missed := sum(answer["gap"] > options.gap for answer in found):
            warn(f"{loss}: {participant.impl} missed the gap in {missed} of {len(found)} rounds")
    return answers


def ratios(answers, baseline):
    """impl -> the median of (its time / the baseline's time) within each round."""
    base = next((found for one, found in answers.items() if one.impl == baseline), None)
    if base is None:
        return {}
    return {
        one.impl: statistics.median(
            mine["seconds"] / its["seconds"] for mine, its in zip(found, base)
        )
        for one, found in answers.items()
    }


def lines_of(answers, chosen, loss, options):
    """One JSON object for each participant."""
    to_one, to_two = ratios(answers, "weft-1"), ratios(answers, "weft-2")
    for one, found in answers.items():
        yield {
            "bench": "linear", "impl": one.impl, "loss": loss, "c": options.c,
            "rows": options.rows, "columns": options.columns, "entries": options.entries,
            "target_gap": options.gap, "budget": chosen[one], "verified": True,
            "seconds": [round(answer["seconds"], 4) for answer in found],
            "median_s": round(statistics.median(a["seconds"] for a in found), 4),
            "median_cpu_s": round(statistics.median(a["cpu_seconds"] for a in found), 4),
            "worst_gap": max(answer["gap"] for answer in found),
            "objective": statistics.median(answer["objective"] for answer in found),
            "ratio_to_weft_1": round(to_one[one.impl], 3) if to_one else None,
            "ratio_to_weft_2": round(to_two[one.impl], 3) if to_two else None,
        }


def table(lines, out):
    """The ratio is above 1 where weft is faster."""
    print(f"\n{'loss':14}{'impl':22}{'budget':>9}{'ms':>10}{'cpu ms':>10}{'gap':>10}"
          f"{'/ weft-1':>10}{'/ weft-2':>10}", file=out)
    for line in lines:
        budget = "" if line["budget"] is None else f"{line['budget']:g}"
        shown = [f"{line[key]:.2f}" if line[key] else "" for key in
                 ("ratio_to_weft_1", "ratio_to_weft_2")]
        print(f"{line['loss']:14}{line['impl']:22}{budget:>9}{1e3 * line['median_s']:10.1f}"
              f"{1e3 * line['median_cpu_s']:10.1f}{line['worst_gap']:10.1e}"
              f"{shown[0]:>10}{shown[1]:>10}", file=out)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    built = HERE.parents[1] / "build/release/bench/linear"
    parser.add_argument("--bin", type=pathlib.Path, default=built,
                        help="folder of weft_bench_linear")
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--impls", default=",".join([*WEFT, *PEERS]))
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=47_000)
    parser.add_argument("--entries", type=int, default=75, help="non-zero values of a row")
    parser.add_argument("--c", type=float, default=1, help="LIBLINEAR's C: l2 = 1 / (C rows)")
    parser.add_argument("--gap", type=float, default=1e-3, help="the relative gap to reach")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object for each participant")
    options = parser.parse_args()
    options.losses, options.impls = options.losses.split(","), options.impls.split(",")
    for name, given, known in (("loss", options.losses, LOSSES),
                               ("impl", options.impls, (*WEFT, *PEERS))):
        if wrong := [one for one in given if one not in known]:
            parser.error(f"no {name} {wrong[0]}; there are {', '.join(known)}")
    if options.rounds < 1 or not options.c > 0 or not 0 < options.gap <= EQUAL:
        parser.error(f"rounds and c must be above 0, and the gap above 0 and at most {EQUAL}")
    return options


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="weft-bench-linear-") as folder:
        with Participants(options, folder) as participants:
            everything = []
            for loss in options.losses:
                start = time.monotonic()
                chosen, dual = verify(participants, loss, options)
                answers = measure(chosen, loss, options, dual)
                lines = list(lines_of(answers, chosen, loss, options))
                for line in lines if options.json else ():
                    print(json.dumps(line), flush=True)
                everything += lines
                print(f"{loss}: {time.monotonic() - start:.0f} s", file=sys.stderr)
            table(everything, sys.stderr if options.json else sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except (Failed, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"linear.py: {error}")
