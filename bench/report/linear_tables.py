"""The table of docs/linear-models.md, a function of the published runs."""

from results import table, times

NAMES = {
    "weft-1": "weft, one process (SDCA)",
    "weft-2": "weft, `cocoa+` with two ranks",
    "weft-hogwild-1": "weft, `hogwild` with one thread",
    "weft-hogwild-2": "weft, `hogwild` with two threads",
    "weft-hogwild-2-locks": "weft, SGD with two threads and locks",
    "liblinear-dual": "LIBLINEAR, dual",
    "liblinear-primal": "LIBLINEAR, primal",
    "sklearn-liblinear": "scikit-learn, `liblinear`",
    "sklearn-sgd": "scikit-learn, `SGDClassifier`",
}


def linear(run):
    rows = [
        [
            line["loss"],
            NAMES[line["impl"]],
            f"{line['median_s']:.2f} s",
            times(line["ratio_to_weft_1"]),
            times(line["ratio_to_weft_2"]),
            f"{line['worst_gap']:.1e}",
        ]
        for line in run.part("linear")
    ]
    head = ["loss", "participant", "time", "over weft's one process", "over weft's two ranks"]
    return table([*head, "relative gap"], rows)


FIGURES = {"linear": linear}
