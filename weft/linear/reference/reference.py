"""Writes data.svm, optima.inc and one_vs_rest.inc: a small data set, and the optima that
scikit-learn and SciPy find for it.

    pip install scikit-learn scipy && python3 reference.py

scikit-learn trains first. SciPy's L-BFGS-B continues from its weights. The better weights count:
LinearSVC stops up to 4e-4 before the optimum. For hinge, the duality gap is below 1e-8.

The values of data.svm are multiples of 1/64, which float32 represents exactly. The labels are
numbers for regression. The classes for the other losses are the signs of the labels; the three
classes of multi-class problems are the labels below -0.5, up to 0.5, and above."""

import numpy
import scipy.optimize
import sklearn.linear_model as linear
import sklearn.svm as svm

ROWS, COLUMNS, ENTRIES = 200, 60, 8


def make_data():
    random = numpy.random.default_rng(17)
    popularity = 1 / (numpy.arange(COLUMNS) + 5)
    hidden = random.normal(size=COLUMNS) * (random.random(COLUMNS) < 0.5)
    x = numpy.zeros((ROWS, COLUMNS))
    for row in x:
        columns = random.choice(
            COLUMNS, ENTRIES, replace=False, p=popularity / popularity.sum()
        )
        row[columns] = numpy.ceil(64 * random.random(ENTRIES)) / 64
    y = numpy.round(x @ hidden + 0.5 * random.normal(size=ROWS), 2)
    with open("data.svm", "w") as file:
        for row, label in zip(x, y):
            entries = " ".join(f"{j + 1}:{row[j]!r}" for j in numpy.flatnonzero(row).tolist())
            print(f"{label} {entries}".replace("np.float64(", "").replace(")", ""), file=file)
    return x, y


def loss_of(name, z, y):
    if name == "logistic":
        return numpy.logaddexp(0, -y * z).mean()
    if name == "hinge":
        return numpy.maximum(0, 1 - y * z).mean()
    if name == "squared-hinge":
        return (numpy.maximum(0, 1 - y * z) ** 2).mean()
    return ((z - y) ** 2).mean() / 2


def objective(name, l2, l1, w, x, y):
    return loss_of(name, x @ w, y) + l2 / 2 * w @ w + l1 * numpy.abs(w).sum()


def polish(name, l2, l1, w, x, y):
    """The smooth losses with L-BFGS-B over w = p - q with p, q >= 0, from w on."""
    def value(pq):
        return objective_of(pq[:COLUMNS] - pq[COLUMNS:]) + l1 * pq.sum()

    def objective_of(v):
        return loss_of(name, x @ v, y) + l2 / 2 * v @ v

    def gradient(pq):
        v = pq[:COLUMNS] - pq[COLUMNS:]
        z = x @ v
        if name == "logistic":
            d = -y / (1 + numpy.exp(y * z))
        elif name == "squared-hinge":
            d = -2 * y * numpy.maximum(0, 1 - y * z)
        else:
            d = z - y
        g = x.T @ d / len(y) + l2 * v
        return numpy.concatenate([g + l1, -g + l1])

    start = numpy.concatenate([numpy.maximum(w, 0), numpy.maximum(-w, 0)])
    found = scipy.optimize.minimize(
        value, start, jac=gradient, method="L-BFGS-B", bounds=[(0, None)] * (2 * COLUMNS),
        options={"maxiter": 100000, "maxfun": 1000000, "ftol": 1e-16, "gtol": 1e-11}
    )
    better = found.x[:COLUMNS] - found.x[COLUMNS:]
    return min((w, better), key=lambda v: objective(name, l2, l1, v, x, y))


def polish_hinge(l2, w, x, y):
    """The box-constrained dual with L-BFGS-B, then its weights."""
    n = len(y)
    yx = y[:, None] * x / (l2 * n)

    def dual(b):
        v = yx.T @ b
        return l2 / 2 * v @ v - b.mean(), l2 * (yx @ v) - 1 / n

    found = scipy.optimize.minimize(
        dual, numpy.full(n, 0.5), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * n,
        options={"maxiter": 100000, "maxfun": 1000000, "ftol": 1e-18, "gtol": 1e-13, "maxcor": 50}
    )
    better = yx.T @ found.x
    print("hinge: duality gap", objective("hinge", l2, 0, better, x, y) + found.fun)
    return min((w, better), key=lambda v: objective("hinge", l2, 0, v, x, y))


def sklearn_weights(name, l2, l1, x, y):
    tight = {"fit_intercept": False, "tol": 1e-12, "max_iter": 1000000}
    n = len(y)
    if name == "squared" and l1 == 0:
        model = linear.Ridge(alpha=l2 * n, fit_intercept=False, solver="cholesky")
    elif name == "squared":
        alpha = l1 + l2
        model = linear.ElasticNet(alpha=alpha, l1_ratio=l1 / alpha, **tight)
    elif name == "logistic" and l1 == 0:
        model = linear.LogisticRegression(C=1 / (l2 * n), solver="newton-cholesky", **tight)
    elif name == "logistic":
        total = l1 + l2
        model = linear.LogisticRegression(
            C=1 / (total * n), l1_ratio=l1 / total, solver="saga", **tight
        )
    elif l1 == 0:
        model = svm.LinearSVC(
            C=1 / (l2 * n), loss=name.replace("-", "_"), dual=True, random_state=1, **tight
        )
    else:
        model = svm.LinearSVC(
            C=1 / (l1 * n), penalty="l1", loss="squared_hinge", dual=False, **tight
        )
    return model.fit(x, y).coef_.ravel()


def main():
    x, labels = make_data()
    signs = numpy.where(labels > 0, 1.0, -1.0)
    cases = [
        ("squared", 0.01, 0), ("squared", 0.001, 0.01), ("squared", 0, 0.02),
        ("logistic", 0.01, 0), ("logistic", 0.0005, 0), ("logistic", 0, 0.005),
        ("logistic", 0.001, 0.004), ("hinge", 0.01, 0), ("hinge", 0.001, 0),
        ("squared-hinge", 0.01, 0), ("squared-hinge", 0, 0.01)
    ]
    with open("optima.inc", "w") as file:
        print("// Generated by reference.py: {loss, l2, l1, objective, {weights}}.", file=file)
        for name, l2, l1 in cases:
            y = labels if name == "squared" else signs
            w = sklearn_weights(name, l2, l1, x, y)
            before = objective(name, l2, l1, w, x, y)
            if name == "hinge":
                w = polish_hinge(l2, w, x, y)
            else:
                w = polish(name, l2, l1, w, x, y)
            value = objective(name, l2, l1, w, x, y)
            print(name, l2, l1, value, before - value, (numpy.abs(w) > 1e-9).sum())
            weights = ", ".join(f"{v:.6f}" for v in w)
            text = f'{{"{name}", {l2}, {l1}, {value:.12f}, {{{weights}}}}},'
            print("\n".join(wrap(text)), file=file)


    write_one_vs_rest(x, labels)


def write_one_vs_rest(x, labels):
    """The three problems of the three classes, for logistic with l2 = 0.01."""
    classes = numpy.where(labels < -0.5, 1, numpy.where(labels <= 0.5, 2, 3))
    with open("one_vs_rest.inc", "w") as file:
        print("// Generated by reference.py: {class, objective, {weights}}.", file=file)
        for one in (1, 2, 3):
            y = numpy.where(classes == one, 1.0, -1.0)
            w = polish("logistic", 0.01, 0, sklearn_weights("logistic", 0.01, 0, x, y), x, y)
            value = objective("logistic", 0.01, 0, w, x, y)
            weights = ", ".join(f"{v:.6f}" for v in w)
            print("\n".join(wrap(f"{{{one}, {value:.12f}, {{{weights}}}}},")), file=file)


def wrap(text, width=98):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "   "
        line = f"{line} {word}" if line else word
    return [*lines, line]


if __name__ == "__main__":
    main()
