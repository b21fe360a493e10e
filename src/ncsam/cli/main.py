"""`ncsam`: the commands by name. Each is imported when it is used."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from typing import Any

import click

from ncsam._version import __version__
from ncsam.cli.framework import Entry, LazyGroup, as_failure

COMMANDS = {
    "train": Entry("ncsam.cli.train:train", "Train a model on data whose labels may be wrong."),
    "auto": Entry("ncsam.cli.auto:auto", "Select and ensemble models by cross-validation (AutoML)."),
    "audit": Entry("ncsam.cli.audit:audit", "Find what is wrong with a dataset: labels, duplicates, columns."),
    "embed": Entry("ncsam.cli.embed:embed", "Turn images or texts into embeddings with a pretrained model."),
    "compare": Entry("ncsam.cli.compare:compare", "Train all combinations of methods, optimizers and seeds."),
    "reproduce": Entry("ncsam.cli.reproduce:reproduce", "Run a table of the paper next to the published numbers."),
    "report": Entry("ncsam.cli.report:report", "Write report.html: curves, label issues, noise, configuration."),
    "issues": Entry("ncsam.cli.issues:issues", "List the training labels that are most likely wrong."),
    "review": Entry("ncsam.cli.review:review", "Review label issues on a local page."),
    "clean": Entry("ncsam.cli.clean:clean", "Write the data with corrected labels."),
    "export-predictions": Entry(
        "ncsam.cli.export_predictions:export_predictions", "Exchange class probabilities with other tools."
    ),
    "annotators": Entry("ncsam.cli.annotators:annotators", "Aggregate the labels of several annotators."),
    "predict": Entry("ncsam.cli.predict:predict", "Classify new samples with a trained run."),
    "export": Entry("ncsam.cli.export:export", "Write a trained model as TorchScript, ONNX or safetensors."),
    "bound": Entry("ncsam.cli.bound:bound", "Evaluate the paper's generalization bound for a trained run."),
    "align": Entry("ncsam.cli.align:align", "Measure a run's perturbation against the clean gradient."),
    "noise": Entry("ncsam.cli.noise:noise", "Make, inspect and plot files of noisy labels."),
    "data": Entry("ncsam.cli.data:data", "List, check and describe datasets."),
    "methods": Entry("ncsam.cli.methods:methods", "List the methods, or show one."),
    "presets": Entry("ncsam.cli.presets:presets", "List the presets, or show one."),
    "doctor": Entry("ncsam.cli.doctor:doctor", "Check the installation: what is missing, and how to install it."),
    "version": Entry("ncsam.cli.version:version", "Print the versions of ncsam and its dependencies."),
}

EPILOG = """\b
Examples:
  ncsam train digits --noise symmetric --rate 0.4 --out runs/first
  ncsam compare digits --noise symmetric --rate 0.4 --optimizers sgd,sam,ncsam --seeds 3 --out runs/digits
  ncsam issues runs/first --top 20
  ncsam report runs/digits

\b
Completion in your shell (bash; zsh and fish likewise):
  eval "$(_NCSAM_COMPLETE=bash_source ncsam)"
"""


class Ncsam(LazyGroup):
    """The root: remembers the command line, and turns exceptions into a sentence and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["ncsam.command"] = ["ncsam", *args]
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a file name may hold what the terminal's encoding lacks
                stream.reconfigure(errors="backslashreplace")
        # Pillow's warning about a large photograph, which is read all the same; one of twice that size is refused
        warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\) exceeds limit")
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:  # `| head` has seen enough; click ends quietly
                raise
            raise as_failure(error, self._options_of(ctx)) from error
        except (Exception, KeyboardInterrupt) as error:
            raise as_failure(error, self._options_of(ctx)) from error

    def _options_of(self, ctx: click.Context) -> list[str]:
        """The Python names of the options of the command that was called, or of those of its group."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        commands = command.commands.values() if isinstance(command, click.Group) else [command]
        params = [param for each in commands if each is not None for param in each.params]
        return [str(param.name) for param in params if isinstance(param, click.Option)]


@click.group(
    cls=Ncsam,
    entries=COMMANDS,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@click.version_option(__version__, prog_name="ncsam")
def main() -> None:
    """Learn with noisy labels: train robust models, find and fix label issues, compare methods."""
