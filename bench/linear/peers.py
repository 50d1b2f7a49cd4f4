#!/usr/bin/env python3
"""A peer of the bench of linear models: LIBLINEAR or scikit-learn on the data of
`weft_bench_linear write=FOLDER`. Reads one JSON object a line on stdin, and writes one a line on
stdout (bench/README.md). Ends with stdin.

    peers.py liblinear-dual|liblinear-primal|sklearn-liblinear|sklearn-sgd FOLDER

    {"loss":"hinge","c":1,"budget":0.1}

`budget` is the tolerance of LIBLINEAR's stopping rule, or the number of epochs of SGD. The time is
that of the call that trains: the data are in memory, in the form that the library wants."""

import ctypes
import json
import os
import sys
import time
import warnings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy  # noqa: E402
import scipy.sparse  # noqa: E402

# LIBLINEAR's numbers of the solvers with an l2 regularizer.
SOLVERS = {
    "liblinear-dual": {"logistic": 7, "hinge": 3, "squared-hinge": 1},
    "liblinear-primal": {"logistic": 0, "squared-hinge": 2},
}


class NotSupported(Exception):
    """The peer has no solver for this problem."""


class Data:
    def __init__(self, folder):
        def array(name, kind):
            return numpy.fromfile(os.path.join(folder, name), kind)

        begins = array("begins.u64", numpy.uint64).astype(numpy.int32)
        columns = array("columns.u32", numpy.uint32).astype(numpy.int32)
        values = array("values.f32", numpy.float32).astype(numpy.float64)
        self.y = array("labels.f64", numpy.float64)
        self.x = scipy.sparse.csr_matrix((values, columns, begins))

    def objective(self, loss, c, w):
        """The mean loss and l2/2 |w|², by numpy, whatever the library reports."""
        margins = self.y * (self.x[:, : len(w)] @ w)
        if loss == "logistic":
            losses = numpy.logaddexp(0, -margins)
        else:
            losses = numpy.maximum(0, 1 - margins) ** (2 if loss == "squared-hinge" else 1)
        return float(losses.mean() + w @ w / (2 * c * len(self.y)))


class Liblinear:
    """The C library through its own Python interface (PyPI: liblinear-official)."""

    def __init__(self, impl, data):
        import liblinear.liblinear as library

        self.solvers, self.library = SOLVERS[impl], library
        self.problem = library.problem(data.y, data.x)

    def train(self, loss, c, budget):
        if loss not in self.solvers:
            raise NotSupported(f"no primal solver for {loss}")
        words = f"-s {self.solvers[loss]} -c {c} -e {budget} -q"
        parameter = self.library.parameter(words)
        start, cpu = time.perf_counter(), time.process_time()
        model = self.library.liblinear.train(self.problem, parameter)
        times = time.perf_counter() - start, time.process_time() - cpu
        features, sign = model.contents.nr_feature, 1 if model.contents.label[0] == 1 else -1
        weights = sign * numpy.array(model.contents.w[:features])
        self.library.liblinear.free_and_destroy_model(ctypes.pointer(model))
        return weights, times


class Sklearn:
    def __init__(self, impl, data):
        import sklearn.linear_model
        import sklearn.svm

        self.sgd, self.data = impl == "sklearn-sgd", data
        self.linear, self.svm = sklearn.linear_model, sklearn.svm

    def model(self, loss, c, budget):
        if self.sgd:
            name = {"logistic": "log_loss"}.get(loss, loss.replace("-", "_"))
            return self.linear.SGDClassifier(
                loss=name, alpha=1 / (c * len(self.data.y)), max_iter=int(budget), tol=None,
                fit_intercept=False, random_state=1,
            )
        common = {"C": c, "tol": budget, "dual": True, "fit_intercept": False,
                  "max_iter": 100_000, "random_state": 1}
        if loss == "logistic":
            return self.linear.LogisticRegression(solver="liblinear", **common)
        return self.svm.LinearSVC(loss=loss.replace("-", "_"), **common)

    def train(self, loss, c, budget):
        model = self.model(loss, c, budget)
        start, cpu = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(self.data.x, self.data.y)
        times = time.perf_counter() - start, time.process_time() - cpu
        sign = 1 if model.classes_[-1] == 1 else -1
        return sign * model.coef_.ravel(), times


def main():
    impl, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Output of libraries must not be taken for an answer.
    data = Data(folder)
    peer = (Liblinear if impl in SOLVERS else Sklearn)(impl, data)
    for line in sys.stdin:
        answer = {"impl": impl}
        try:
            command = json.loads(line)
            loss, c = command["loss"], command["c"]
            weights, (seconds, cpu) = peer.train(loss, c, command["budget"])
            answer |= {"seconds": seconds, "cpu_seconds": cpu,
                       "objective": data.objective(loss, c, weights)}
        except (NotSupported, KeyError, ValueError) as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
