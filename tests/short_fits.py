"""Small fits for tests that are not about label issues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest


@contextmanager
def short_fits() -> Iterator[None]:
    """p_wrong is fitted in five steps instead of a hundred, and forests have ten trees instead of a hundred."""
    from ncsam.classifiers import smooth
    from ncsam.issues import calibration

    whole = getattr(calibration.minimize, "func", calibration.minimize)  # also within another such block
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "minimize", partial(whole, most=5))
        patch.setitem(smooth.fit_table.__kwdefaults__, "trees", 10)
        yield
