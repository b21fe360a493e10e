"""What is published for each method in one setting, and what a run of ours would need to be compared with it.

    python experiments/published.py

Nothing is trained. Figures are test accuracies in percent as the tables of the NCSAM paper give them (its table 1:
CIFAR-10 with 20 % instance-dependent noise; 2: with 20 % symmetric noise; 3: Tiny-ImageNet with 20 % symmetric noise;
4: ANIMAL-10N; 5: Food-101N), network and epochs those of the authors' code. A dash: that paper has no figure.
"""

from __future__ import annotations

from common import markdown_table

INSTANCE, SYMMETRIC = "CIFAR-10, instance 20 %", "CIFAR-10, symmetric 20 %"
TINY, ANIMAL, FOOD = "Tiny-ImageNet, symmetric 20 %", "ANIMAL-10N", "Food-101N"

#: Method -> setting, accuracy, network and epochs.
PUBLISHED: dict[str, tuple[str, float | None, str]] = {
    "ce": (SYMMETRIC, 88.51, "PreAct-ResNet-18 (CTRR's table)"),
    "gce": (SYMMETRIC, 91.22, "ResNet-34, 120 epochs"),
    "gce_truncated": (SYMMETRIC, None, "ResNet-34, 120 epochs"),
    "sl": (SYMMETRIC, 92.45, "8-layer CNN, 120 epochs"),
    "apl": (SYMMETRIC, 92.51, "8-layer CNN, 120 epochs"),
    "js": (SYMMETRIC, None, "PreAct-ResNet-34, 400 epochs"),
    "gjs": (ANIMAL, 84.20, "on CIFAR: PreAct-ResNet-34, 400 epochs"),
    "peer": (INSTANCE, 89.12, "PreAct-ResNet-18, 300 epochs"),
    "dmi": (INSTANCE, 88.57, "100 epochs after cross-entropy's"),
    "forward": (SYMMETRIC, 88.87, "ResNet-32, 120 epochs, twice"),
    "backward": (SYMMETRIC, None, "ResNet-32, 120 epochs, twice"),
    "sln": (SYMMETRIC, 88.77, "WRN-28-2, 300 epochs"),
    "elr": (SYMMETRIC, None, "not established"),
    "mixup": (INSTANCE, 87.71, "200 epochs; network not established"),
    "regce": (SYMMETRIC, 93.77, "not established"),
    "decoupling": (TINY, 37.00, "200 epochs in the Co-teaching line"),
    "mentornet": (TINY, 45.7, "200 epochs in the Co-teaching line"),
    "coteaching": (SYMMETRIC, 92.05, "9-layer CNN, 200 epochs"),
    "coteaching_plus": (INSTANCE, 89.80, "2-layer CNN, 200 epochs"),
    "jocor": (INSTANCE, 88.78, "200 epochs; network not established"),
    "cores2": (INSTANCE, 91.14, "ResNet-34, 100 epochs"),
    "selfie": (ANIMAL, 81.80, "VGG-19, 100 epochs, three times in a row"),
    "plc": (ANIMAL, 83.40, "VGG-19-BN, 100 epochs"),
    "mcorrection": (TINY, 57.20, "PreAct-ResNet-18, 300 epochs"),
    "trevision": (INSTANCE, 90.04, "ResNet-18, 20 + 200 + 200 epochs"),
    "dividemix": (INSTANCE, 93.33, "two PreAct-ResNet-18, 300 epochs"),
    "disc": (TINY, 67.9, "ResNet-18, 200 epochs"),
    "ctrr": (SYMMETRIC, 93.05, "PreAct-ResNet-18, 550 epochs, batches of 256"),
    "colearning": (ANIMAL, 83.00, "on CIFAR: ResNet-18, 200 epochs"),
    "unicon": (TINY, 59.20, "two networks, 500 epochs by the code, 350 by the paper"),
    "cc": (INSTANCE, 93.68, "two ResNet-34, 300 epochs"),
    "limit": (SYMMETRIC, 89.63, "two ResNet-34, 400 epochs, batches of 256"),
    "nct": (TINY, 58.20, "two PreAct-ResNet-18, 200 epochs"),
    "nested_coteaching": (ANIMAL, 84.10, "two VGG-19-BN, 100 + 30 epochs"),
    "cal": (INSTANCE, 92.01, "ResNet-34, 65 + 100 epochs"),
    "cleannet": (FOOD, 83.95, "ResNet-50, pre-trained"),
}


def main() -> None:
    rows = [
        [f"`{name}`", setting, "-" if accuracy is None else f"{accuracy:.2f}", needed]
        for name, (setting, accuracy, needed) in PUBLISHED.items()
    ]
    print(markdown_table(["method", "published setting", "accuracy", "network and epochs to compare with"], rows))


if __name__ == "__main__":
    main()
