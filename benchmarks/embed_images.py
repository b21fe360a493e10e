"""Image embedding: `features_of` beside a bare loop over the same model and the same files.

OMP_NUM_THREADS=1 python benchmarks/embed_images.py photos/ --images 256
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from ncsam.data import load
from ncsam.embed import choose_encoder
from ncsam.embed.encoder import Encoder
from ncsam.embed.features import encode, image_loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="a folder of class folders")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    dataset = load(options.folder)
    split = dataset.train.take(np.linspace(0, len(dataset.train) - 1, options.images).astype(np.int64))
    encoder, choice = choose_encoder(dataset)
    assert isinstance(encoder, Encoder)
    print(f"{choice.name} at {encoder.size[0]} pixels, {options.images} images: CPU seconds")
    images = [batch.views[0] for batch in image_loader(split, encoder, 64, 0).iterate(0)]
    for _ in range(options.repeats):
        start = time.process_time()
        decoded = [batch.views[0] for batch in image_loader(split, encoder, 64, 0).iterate(0)]
        reading = time.process_time() - start
        del decoded
        start = time.process_time()
        with torch.inference_mode():
            bare = np.concatenate([encoder(x).numpy() for x in images])
        model = time.process_time() - start
        start = time.process_time()
        ours = encode(split.inputs, encoder, None)
        whole = time.process_time() - start
        share = 100 * (whole / (reading + model) - 1)
        print(
            f"decoding {reading:.2f}, model {model:.2f}, features_of {whole:.2f}: {share:+.1f} % over their sum, "
            f"largest difference {np.abs(bare - ours).max():.1g}"
        )


if __name__ == "__main__":
    main()
