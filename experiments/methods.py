"""Methods under SGD and under NCSAM, on digits with 40 % symmetric and pair-flip noise.

    python experiments/methods.py runs/methods

NCSAM has the paper's knobs (rho .05, kappa .1, warm-up for a quarter); the difference from SGD is taken seed by seed.
For the cost of an epoch of each see `benchmarks/method_cost.py`.
"""

from __future__ import annotations

from common import Setting, Table, main

METHODS = (
    *("ce", "gce", "gce_truncated", "sl", "apl:lr=0.01", "js", "gjs", "peer", "dmi", "forward", "backward"),
    *("sln:lr=0.001", "sln:lr=0.005", "elr", "mixup", "regce", "decoupling", "mentornet", "coteaching"),
    *("coteaching_plus", "jocor", "cores2", "selfie", "plc", "mcorrection", "trevision", "dividemix"),
    *("disc", "ctrr", "colearning", "unicon", "cc", "limit", "nct", "nested_coteaching", "cal", "cleannet"),
)
TABLE = Table(
    "methods",
    {noise: {"noise": noise, "rate": 0.4} for noise in ("symmetric", "pairflip")},
    {f"{method}, {name}": Setting(name, method) for method in METHODS for name in ("sgd", "ncsam")},
    shared={"epochs": 20},
    controls={f"{method}, ncsam": f"{method}, sgd" for method in METHODS},
    metrics=("last5",),
    digits=2,
)

if __name__ == "__main__":
    main(__doc__, lambda _: [TABLE])
