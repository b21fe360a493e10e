"""Good manners: help, exit codes, suggestions, no traceback for a mistake, quick start, plain pipes."""

import errno
import os
import signal
import subprocess
import sys
import time

import click
import pytest
from cli_cases import QUICK, call

from ncsam.cli.main import COMMANDS, as_failure, main
from ncsam.engine.config import optimizer_names
from ncsam.errors import Interrupted, RunError

COMMAND = [sys.executable, "-m", "ncsam"]


def commands(group=main, path=()):
    """Every command and sub-command, by its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_has_help_with_examples(path):
    text = call(*path, "--help").output
    assert "Example" in text
    assert f"ncsam {' '.join(path)}" in text
    assert call(*path, "-h").output == text


def test_the_root_lists_every_command_with_what_it_says_itself():
    text = " ".join(call("--help").output.split())  # long ones are wrapped
    context = click.Context(main)
    for name, entry in COMMANDS.items():
        assert entry.about in text
        assert main.get_command(context, name).name == name


def test_help_and_completion_import_nothing_heavy():
    script = (
        "import sys; from ncsam.cli.main import main\n"
        "from click.testing import CliRunner\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "environment = {'_NCSAM_COMPLETE': 'bash_complete', 'COMP_WORDS': 'ncsam tr', 'COMP_CWORD': '1'}\n"
        "print(CliRunner().invoke(main, [], prog_name='ncsam', env=environment).output)\n"
        "heavy = {'matplotlib', 'lightning_fabric', 'sklearn', 'scipy', 'PIL', 'rich', 'yaml', 'ncsam.engine'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["plain,train", "[]"]


@pytest.mark.parametrize(
    ("words", "cursor", "found"),
    [
        ("ncsam train --optimizer ", 3, {f"plain,{name}" for name in optimizer_names()}),
        ("ncsam compare digits --optimizers sgd,n", 4, {"plain,sgd,ncsam", "plain,sgd,ncsam-authors"}),
        ("ncsam train --flip", 2, {"plain,--flip-ratio"}),
        ("ncsam noise make --noise pair", 4, {"plain,pairflip"}),
    ],
)
def test_the_shell_completes_names(words, cursor, found):
    from click.testing import CliRunner

    environment = {"_NCSAM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(cursor)}
    output = CliRunner().invoke(main, [], prog_name="ncsam", env=environment).output
    assert set(output.split()) == found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["noise", "inspct"], "No such command 'inspct'. Did you mean 'inspect'?"),
        (["train", "digits", "--optimiser", "sam"], "'--optimiser'"),
        (["train", "digits", "--optimizer", "scam"], "Did you mean 'sam'"),
        (["train", "digist"], "Did you mean 'digits'?"),
        (["train", "digits", "--noise", "symetric", "--rate", "0.4"], "Did you mean 'symmetric'"),
        (["train", "digits", "--method", "mixpu"], "Did you mean 'mixup'?"),
        (["train", "digits", "--model", "vgg91_bn"], "Did you mean 'vgg19_bn'"),
        (["train", "digits", "--model-options", "hiden=[3]", "--model", "mlp"], "Did you mean 'hidden'?"),
        (["train", "--preset", "nothing"], "unknown preset 'nothing'"),
        (["train"], "Missing argument 'DATA'"),
        (["train", "digits", "--rate", "1.5"], "rate=1.5"),
        (["train", "digits", "--epochs", "ten"], "'ten' is not a whole number"),
        (["train", "digits", "--rate", "much"], "'much' is not a number or null"),
        (["train", "digits", "--model-options", "hidden"], "'hidden' is not KEY=VALUE"),
        (["train", "--config", "nowhere.yaml"], "config='nowhere.yaml': there is no such file"),
        (["train", "no/such/folder"], "no such file or folder: 'no/such/folder'"),
        (["compare", "digits", "--seeds", "a,b"], "'a,b' is neither a count nor a list of seeds such as 1,2,3"),
        (["compare", "digits", "--optimizers", "sgd,sgd"], "optimizers=['sgd', 'sgd']"),
        (["compare", "digits", "--optimizers", "sam:rho"], "optimizer='sam:rho'"),
        (["report", "."], "holds no config.yaml"),
        (["presets", "show", "cifar"], "unknown preset 'cifar'"),
        (["data", "describe", "digits", "--data-options", "test_fracton=0.5"], "Did you mean 'test_fraction'?"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments, code=2)
    assert said in result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert not list(tmp_path.rglob("checkpoints")), "nothing was trained"


def test_the_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("NCSAM_DEBUG", "1")
    output = call("data", "describe", "digist", code=2).output
    assert "Traceback" in output
    assert output.rstrip().splitlines()[-1].startswith("Error: unknown dataset")


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_exit_codes_tell_who_is_at_fault():
    from ncsam._errors import bad_value, need

    def ours(call):
        try:
            call()
        except Exception as error:
            return as_failure(error).exit_code

    assert as_failure(RunError("the disk is full")).exit_code == 1
    assert as_failure(OSError(errno.ENOSPC, "No space left on device")).exit_code == 1
    assert as_failure(raised(ValueError("from somewhere else"))).exit_code == 1
    assert as_failure(raised(PermissionError(errno.EACCES, "Permission denied", "x"))).exit_code == 2
    assert ours(lambda: need("no_such_module", "train", "this")) == 2
    stopped = as_failure(Interrupted("stopped in epoch 3"))
    assert (stopped.exit_code, stopped.message) == (130, "stopped in epoch 3")
    assert as_failure(KeyboardInterrupt()).exit_code == 130
    unexpected = as_failure(raised(KeyError("x")))
    assert (unexpected.exit_code, unexpected.message) == (
        1,
        "unexpected error: 'x'. Set NCSAM_DEBUG=1 to see the traceback",
    )
    assert str(bad_value("a", 1, "b")) == "invalid a=1: expected b"


def test_a_run_that_diverges_fails_with_1(tmp_path):
    output = call("train", "digits", *QUICK, "--lr", "1e30", "--quiet", "--out", tmp_path / "r", code=1).output
    assert "training diverged" in output
    assert "Traceback" not in output


def test_a_pipe_gets_plain_text(trained):
    table = call("issues", trained, "--top", "2").output
    columns = table.splitlines()[0].split()
    assert columns[:3] == ["given_label", "suggested_label", "clean_label"]
    assert {"index", "label_quality"} <= set(columns)
    assert "\x1b" not in table
    assert not any(line != line.rstrip() for line in table.splitlines())


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error(trained):
    run = subprocess.run(
        f"{sys.executable} -m ncsam issues {trained} --top 0 --csv | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.startswith("index,given_label,predicted_label,label_quality")
    assert run.stderr == ""


@pytest.mark.slow
def test_no_color_is_honored_on_a_terminal(trained):
    pty = pytest.importorskip("pty")

    def on_terminal(**environment):
        parent, child = pty.openpty()
        settings = {**os.environ, "COLUMNS": "100", "TERM": "xterm", **environment}
        settings.pop("PYTEST_CURRENT_TEST", None)
        process = subprocess.Popen([*COMMAND, "issues", str(trained), "--top", "1"], stdout=child, env=settings)
        os.close(child)
        text = b""
        try:
            while block := os.read(parent, 4096):
                text += block
        except OSError:  # the other side has closed
            pass
        assert process.wait() == 0
        os.close(parent)
        return text

    assert b"\x1b[1m" in on_terminal()
    assert b"\x1b" not in on_terminal(NO_COLOR="1")


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    folder = tmp_path / "run"
    command = [*COMMAND, "train", "digits", *QUICK, "--epochs", "400", "--yes", "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith("Stopped: interrupted in epoch")
    assert "Traceback" not in said
    done = len(metrics.read_text().splitlines())
    output = call("train", "digits", *QUICK, "--epochs", "400", "--out", folder, "--dry-run").output
    assert f"would resume after {done} of 400 epochs" in output


def test_the_module_is_the_command():
    run = subprocess.run([*COMMAND, "version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("ncsam ")
    assert call("--version").output.startswith("ncsam, version ")
