"""Stress tests: run the parts, print tried / held / broke of each, and exit with 1 if anything broke."""

from __future__ import annotations

import argparse
import sys
import time

import torch

from stress import calls, faults, inputs, interrupts, kills, ranks, soak
from stress.harness import Tally, repeat

#: Each part with its share of the time.
PARTS = {
    "interrupts": (interrupts, 0.2),
    "inputs": (inputs, 0.3),
    "calls": (calls, 0.1),
    "faults": (faults, 0.1),
    "kills": (kills, 0.15),
    "ranks": (ranks, 0.075),
    "soak": (soak, 0.075),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200, help="total time [1200]")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is drawn [0]")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated names [all]")
    parser.add_argument("--repeat", metavar="EXAMPLE", help="one example that broke, as it was reported")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.repeat:
        part, example = options.repeat.split("/", 1)
        problem = repeat({"inputs": inputs.cases, "calls": calls.cases}[part](), example)
        sys.exit(problem and f"broke: {problem}")
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"invalid --parts {','.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    chosen = {name: PARTS[name] for name in options.parts.split(",")}
    total = sum(share for _, share in chosen.values())
    tallies = []
    for name, (part, share) in chosen.items():
        tallies.append(Tally(name, options.seed, time.monotonic() + options.seconds * share / total))
        part.run(tallies[-1])
        print(tallies[-1].line(), flush=True)
    tried, broke = sum(t.tried for t in tallies), sum(len(t.broke) for t in tallies)
    print(f"seed {options.seed}: tried {tried}, held {tried - broke}, broke {broke}")
    sys.exit(1 if broke else 0)


if __name__ == "__main__":
    main()
