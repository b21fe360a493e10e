"""`methods`: what it prints is what the methods say of themselves."""

from cli_cases import call

from ncsam import methods
from ncsam.methods.describe import described


def test_methods_are_listed_and_described():
    lines = call("methods").output.splitlines()
    assert [line.split()[0] for line in lines] == methods.names()
    assert call("methods", "show", "elr").output == described("elr") + "\n"
    assert "  cifar100: weight=7, beta=0.9" in call("methods", "show", "elr").output
