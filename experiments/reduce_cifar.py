"""A CIFAR-10 archive small enough for two cores: some of its images, averaged to 16x16, with all their labels.

    python experiments/reduce_cifar.py cifar10_subset.npz small.npz --train 5000 --test 2500

Without `--part` these are the first of the archive; part 1 begins where those end, and shares no image with them.
The input holds `x_train`, `y_train`, `x_test`, `y_test` and any further training labels as `y_NAME`.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from ncsam._files import atomic_path


def halved(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Means of 2x2 pixels, rounded."""
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // 2, 2, width // 2, 2, channels).astype(np.float32)
    return np.rint(blocks.mean(axis=(2, 4))).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=2500)
    parser.add_argument("--part", type=int, default=0)
    options = parser.parse_args()
    with np.load(options.source) as whole:
        arrays = {}
        for name in whole:
            if name == "class_names":
                arrays[name] = whole[name]
            else:
                count = options.test if name.endswith("_test") else options.train
                part = whole[name][options.part * count : (options.part + 1) * count]
                arrays[name] = halved(part) if name.startswith("x_") else part
    with atomic_path(options.target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


if __name__ == "__main__":
    main()
