"""Columns, samples and labels that are distributed differently in train and test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam import classifiers
from ncsam.auditing.columns import LEAST, as_numbers
from ncsam.auditing.findings import CHECKS, Finding, finding
from ncsam.issues.find import auroc

Labels = npt.NDArray[np.int64]
_P = 0.01  # of all columns together, below which a shift counts
_MOST = 50_000  # samples of each split that are compared
_UNLIKE = 0.99  # share of test samples that are more like the test split than a training sample to leave out


def ks_statistic(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the largest distance between two empirical distribution functions (two-sample Kolmogorov-Smirnov).

    Args:
        a: numbers of one sample, not empty.
        b: numbers of the other sample, not empty.

    Examples:
        >>> ks_statistic([1, 2, 3, 4], [3, 4, 5, 6])
        0.5
    """
    one, other = np.sort(np.asarray(a, dtype=np.float64)), np.sort(np.asarray(b, dtype=np.float64))
    both = np.concatenate([one, other])
    cdfs = [np.searchsorted(each, both, side="right") / len(each) for each in (one, other)]
    return float(np.abs(cdfs[0] - cdfs[1]).max())


def total_variation(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Return half the sum of absolute differences between the frequencies of values.

    Args:
        a: values of one sample, not empty; compared as text.
        b: values of the other sample, not empty.

    Returns:
        0 for equal frequencies, 1 if no value is in both.
    """
    values = sorted({str(v) for v in a} | {str(v) for v in b})
    place = {value: i for i, value in enumerate(values)}
    shares = [np.bincount([place[str(v)] for v in each], minlength=len(values)) / len(each) for each in (a, b)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def noise_level(n: int, m: int, kinds: int, tests: int) -> float:
    r"""Return the statistic that equal distributions exceed with a probability of at most 1 % over all tests.

    For Kolmogorov-Smirnov this is asymptotically :math:`\sqrt{\ln(2 t / .01) (n + m) / (2 n m)}` for t tests. For the
    total variation of c categories, :math:`\sqrt{c (n + m) / (4 n m)}`, an upper bound of its mean, is added.

    Args:
        n: size of one sample.
        m: size of the other sample.
        kinds: number of categories c; 0 for Kolmogorov-Smirnov.
        tests: number of tests t.
    """
    spread = (n + m) / (n * m)
    return math.sqrt(math.log(2 * tests / _P) * spread / 2) + (math.sqrt(kinds * spread / 4) if kinds else 0.0)


def find_shifted(train: Mapping[str, Sequence[Any]], test: Mapping[str, Sequence[Any]]) -> list[Finding]:
    """Find columns whose values are distributed differently in the test split, beyond chance and by at least 0.2.

    Args:
        train: columns of the training rows, by name.
        test: columns of the test rows, by name.

    Returns:
        A finding per column, worst first. Columns with fewer than 20 rows in either split are not judged.
    """
    found = []
    for name in train:
        a, b = train[name], test.get(name, ())
        if min(len(a), len(b)) < LEAST:
            continue
        numbers = [as_numbers(a), as_numbers(b)]
        one, other = (None if each is None else each[np.isfinite(each)] for each in numbers)
        if one is not None and other is not None and len(one) and len(other):
            score, kind = ks_statistic(one, other), "KS statistic"
            level = noise_level(len(one), len(other), 0, len(train))
        else:
            kinds = len({str(v) for v in a} | {str(v) for v in b})
            score, kind = total_variation(a, b), "total variation"
            level = noise_level(len(a), len(b), kinds, len(train))
        if score >= max(CHECKS["shifted_column"].threshold, level):
            said = f"{kind} {score:.2f}; chance gives at most {level:.2f}"
            found.append(finding("shifted_column", score, name=name, evidence=said))
    return sorted(found, key=lambda each: -each.score)


def find_label_shift(train: Labels, test: Labels, classes: Sequence[str]) -> list[Finding]:
    """Compare the class frequencies of train and test.

    Args:
        train: labels of the training samples.
        test: labels of the test samples.
        classes: class names.

    Returns:
        No finding, or one about the class with the largest difference.
    """
    if not len(train) or not len(test):
        return []
    distance = total_variation(train.tolist(), test.tolist())
    score, level = 0.5 + distance / 2, noise_level(len(train), len(test), len(classes), 1)
    if score < CHECKS["distribution_shift"].threshold or distance < level:
        return []
    shares = [np.bincount(each, minlength=len(classes)) / len(each) for each in (train, test)]
    most = int(np.abs(shares[0] - shares[1]).argmax())
    said = f"class {classes[most]}: {100 * shares[0][most]:.0f} % of train, {100 * shares[1][most]:.0f} % of test"
    return [finding("distribution_shift", score, name="labels", index=most, evidence=said, decision="review")]


def find_shift(train: npt.NDArray[np.float32], test: npt.NDArray[np.float32]) -> list[Finding]:
    """Test whether a linear classifier tells training from test samples: its out-of-fold AUC on up to 50,000 each.

    Args:
        train: embeddings of the training samples (n, d).
        test: embeddings of the test samples (m, d).

    Returns:
        No finding, or one about the shift, followed by training samples that are less like the test split than 99 % of
        it, to be dropped. If these are more than half, they are not listed: no selection of samples helps.

    References:
        Crump, Hotz, Imbens and Mitnik 2009, Dealing with limited overlap in estimation of average treatment effects.
    """
    generator = np.random.default_rng(0)
    places = [np.sort(generator.permutation(len(rows))[:_MOST]) for rows in (train, test)]
    if min(map(len, places)) < LEAST:
        return []
    x = np.concatenate([train[places[0]], test[places[1]]])
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-6)
    y = np.repeat([0, 1], [len(each) for each in places])
    like_test = classifiers.cross_fit("lda", torch.from_numpy(x), torch.from_numpy(y), 2).probabilities[:, 1]
    area = auroc(like_test, y == 1) or 0.5
    if area < CHECKS["distribution_shift"].threshold:
        return []
    ours, theirs = like_test[y == 0], like_test[y == 1]
    related = tuple(f"test {i}" for i in places[1][np.argsort(-theirs, kind="stable")[:3]].tolist())
    said = f"a linear classifier tells train from test with an AUC of {area:.2f}"
    found = [finding("distribution_shift", area, name="samples", evidence=said, related=related, decision="review")]
    share = 1 - np.searchsorted(np.sort(theirs), ours, side="right") / len(theirs)
    unlike = np.flatnonzero(share >= _UNLIKE)
    for i in unlike[np.argsort(-share[unlike], kind="stable")].tolist() if 2 * len(unlike) <= len(ours) else []:
        said = f"less like the test split than {100 * share[i]:.0f} % of it"
        found.append(finding("distribution_shift", area, split="train", index=int(places[0][i]), evidence=said))
    return found
