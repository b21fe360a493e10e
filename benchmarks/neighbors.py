"""Exact nearest neighbors of random rows: seconds, and rows a second.

python benchmarks/neighbors.py --rows 100000 --features 512 --threads 2
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from ncsam.auditing.neighbors import nearest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x = np.random.default_rng(0).normal(size=(options.rows, options.features)).astype(np.float32)
    began = time.perf_counter()
    processor = time.process_time()
    nearest(x, options.neighbors)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{options.rows:,} x {options.features}, {options.threads} threads: {seconds:.1f} s, {processor:.1f} s of CPU"
    )
    print(f"{options.rows / seconds:,.0f} rows a second, {most:.2f} GiB at most")


if __name__ == "__main__":
    main()
