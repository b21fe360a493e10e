"""A run folder made by hand, over a folder of small images, so that nothing has to be trained."""

import csv
import json

import numpy as np
from PIL import Image

from ncsam.engine import RunConfig

#: The third class has a name that would be markup, were it not shown as text.
CLASSES = ["cat", "dog", "<script>document.title='taken'</script>"]
EVIL_FILE = "<img src=x onerror=alert(1)>.png"


def made_run(tmp_path, count=30, probabilities=True):
    """`count` images in three classes. Sample i is labeled i % 3; the first third of the queue suggests the next."""
    photos, folder = tmp_path / "photos", tmp_path / "run"
    table = photos / "labels.csv"
    photos.mkdir(parents=True)
    generator = np.random.default_rng(0)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for i in range(count):
            name = EVIL_FILE if i == 1 else f"{i:05d}.png"
            Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(photos / name)
            writer.writerow([name, CLASSES[i % 3]])
    classes = sorted(CLASSES)
    folder.mkdir()
    RunConfig(data=str(table), epochs=1).save(folder / "config.yaml")
    (folder / "summary.json").write_text(json.dumps({"epochs": 1}))
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1}) + "\n")
    known = {"reliable": probabilities, "reason": "" if probabilities else "the model has learned little"}
    (folder / "label_posterior.json").write_text(json.dumps(known))
    with (folder / "label_issues.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        head = ["index", "path", "given_label", "predicted_label", "label_quality", "p_wrong", "is_label_issue"]
        writer.writerow([*head, "suggested_label", "p_suggested"])
        for rank, i in enumerate(queue_order(count)):
            given_label = classes.index(CLASSES[i % 3])
            doubted = rank < count // 3
            suggested_label = (given_label + 1) % 3
            p_wrong, p_suggested = (0.9 if doubted else 0.1, 0.8 if doubted else 0.05) if probabilities else ("", "")
            predicted = suggested_label if doubted else given_label
            name = EVIL_FILE if i == 1 else f"{i:05d}.png"
            row = [i, photos / name, given_label, predicted, f"{rank / count:.4f}", p_wrong, int(doubted)]
            writer.writerow([*row, suggested_label, p_suggested])
    return folder


def queue_order(count):
    """The samples, the least plausible label first: 1, 0, 3, 2, 5, 4 ..."""
    return [i ^ 1 for i in range(count)] if count % 2 == 0 else list(range(count))
