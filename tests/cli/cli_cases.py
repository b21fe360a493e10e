"""A way to call the command, and options for a run of seconds."""

from click.testing import CliRunner

from ncsam.cli.main import main

QUICK = ["--noise", "symmetric", "--rate", "0.4", "--epochs", "2", "--model-options", "hidden=[16]", "--lr", "0.1"]


def call(*arguments, code=0):
    """Run `ncsam ARGUMENTS`, check the exit code, and give what it printed."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="ncsam")
    assert result.exit_code == code, result.output
    return result
