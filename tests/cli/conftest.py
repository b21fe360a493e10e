"""One small real run for all, and the hand-made ones of the report's tests."""

import sys
from pathlib import Path

import pytest
from cli_cases import QUICK, call

from short_fits import short_fits

sys.path.append(str(Path(__file__).parents[1] / "bench"))  # where made_runs lies


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two epochs on digits with 40 % wrong labels."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with short_fits():  # as the tests that compare with it
        call("train", "digits", *QUICK, "--optimizer", "ncsam", "--quiet", "--out", folder)
    return folder
