"""The screenshots of the gallery: the review page and the report of a run on Fashion-MNIST.

    python tools/screenshots.py FOLDER

FOLDER holds Fashion-MNIST's four files (MIT license; the Debian package dataset-fashion-mnist has them). A classifier
is fitted to the pixels of the first 3,000 test images with their original labels. Needs chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from selenium import webdriver

import ncsam
from ncsam.data.readers.idx import read_idx

OUT = Path(__file__).parents[1] / "docs/assets"
NAMES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
IMAGES = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    images = read_idx(folder / "t10k-images-idx3-ubyte.gz", 3)[:IMAGES]
    labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz", 1)[:IMAGES]
    with tempfile.TemporaryDirectory() as scratch:
        run = ncsam.train((images, np.array(NAMES)[labels]), Path(scratch) / "fashion", model="smooth")
        with browser() as driver:
            take(driver, run.report().as_uri(), OUT / "report.png", height=900)
            command = [sys.executable, "-m", "ncsam", "review", str(run.path), "--no-open", "--reviewer", "Ada"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
                take(driver, address, OUT / "review.png", height=740)
                server.terminate()


def browser() -> webdriver.Chrome:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def take(driver: Any, address: str, out: Path, height: int) -> None:
    """Write the top of a page as an image."""
    size = {"width": 1200, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(address)
    time.sleep(2)  # until images are loaded
    driver.save_screenshot(str(out))
    print(out)


if __name__ == "__main__":
    main()
