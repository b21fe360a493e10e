"""`python -m stress`: run the campaign, print tried / held / broke of each part, and exit with 1 if anything broke."""

from __future__ import annotations

import argparse
import sys
import time

import torch

from stress import calls, faults, inputs, interrupts, kills, ranks, soak
from stress.tally import Tally

#: Each part with its share of the time.
PARTS = {
    "interrupts": (interrupts.run, 0.2),
    "inputs": (inputs.run, 0.25),
    "calls": (calls.run, 0.05),
    "faults": (faults.run, 0.1),
    "kills": (kills.run, 0.2),
    "ranks": (ranks.run, 0.1),
    "soak": (soak.run, 0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200, help="about how long [1200]")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is drawn [0]")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas [all]")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    chosen = {name: PARTS[name] for name in options.parts.split(",")}
    torch.set_num_threads(1)
    total = sum(share for _, share in chosen.values())
    tallies = []
    for name, (run, share) in chosen.items():
        tally = Tally(name, options.seed, time.monotonic() + options.seconds * share / total)
        tallies.append(tally)
        run(tally)
        print(tally.line(), flush=True)
    tried, broke = sum(t.tried for t in tallies), sum(len(t.broke) for t in tallies)
    print(f"seed {options.seed}: tried {tried}, held {tried - broke}, broke {broke}")
    sys.exit(1 if broke else 0)


if __name__ == "__main__":
    main()
