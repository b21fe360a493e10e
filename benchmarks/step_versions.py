"""A step of the optimizers by this version of ncsam and by another one, in one run.

    python benchmarks/step_versions.py --against 47a0181 [--models mlp] [--precision 32-true] [--rounds 30]

`--against` is a commit, or a folder that holds another version's `ncsam`. Each version and optimizer has a process of
its own, on one thread, and they take turns of 20 steps, one of which is exact in fused NCSAM. Ratios are medians of the
ratios of processor time within a round: of this version to the other one, and in each version to SGD and to SAM.
"""

from __future__ import annotations

import statistics

import torch

from timing import parser, ratio, table, write_json
from versions import in_turns, serve, sources

STEPS = 20  # as many as fused NCSAM takes from one exact step to the next
OPTIMIZERS = {"sgd": "sgd", "sam": "sam", "msam": "msam", "msam_adaptive": "msam_adaptive", "fused": "ncsam_fused"}


def work(model: str, precision: str, name: str) -> None:
    """A process of one version and optimizer."""
    import step_cost

    torch.set_num_threads(1)
    training = step_cost.Training(step_cost.SETTINGS[model], precision)
    training.model._forward_hooks.clear()  # nothing is counted here
    step = step_cost.CANDIDATES[OPTIMIZERS[name]][0](training)

    def steps() -> None:
        for _ in range(STEPS):
            step()

    steps()
    serve(steps)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--against", help="a commit, or a folder with another version of the package")
    options.add_argument("--models", nargs="+", default=["mlp"], help="networks of step_cost")
    options.add_argument("--precision", nargs="+", default=["32-true"])
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--worker", nargs=3, help="(internal) model, precision and optimizer of a process that waits")
    chosen = options.parse_args()
    if chosen.worker:
        work(*chosen.worker)
        return
    if not chosen.against:
        options.error("--against is needed: a commit or a folder")
    rounds = 5 if chosen.quick else chosen.rounds
    figures = {}
    with sources(chosen.against) as found:
        for model, precision in ((m, p) for m in chosen.models for p in chosen.precision):
            commands = {name: [__file__, "--worker", model, precision, name] for name in OPTIMIZERS}
            seconds = {key: [turn[1] for turn in turns] for key, turns in in_turns(found, commands, rounds).items()}
            rows = {
                name: {
                    "here / other": ratio(seconds[name, "here"], seconds[name, "other"]),
                    "ms here": 1e3 * statistics.median(seconds[name, "here"]) / STEPS,
                    "ms other": 1e3 * statistics.median(seconds[name, "other"]) / STEPS,
                    "/ SGD, here": ratio(seconds[name, "here"], seconds["sgd", "here"]),
                    "/ SGD, other": ratio(seconds[name, "other"], seconds["sgd", "other"]),
                    "/ SAM, here": ratio(seconds[name, "here"], seconds["sam", "here"]),
                    "/ SAM, other": ratio(seconds[name, "other"], seconds["sam", "other"]),
                }
                for name in OPTIMIZERS
            }
            table(f"a step of {model}, {precision}", rows)
            figures[f"{model}, {precision}"] = rows
    write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
