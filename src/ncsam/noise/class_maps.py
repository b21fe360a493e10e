"""Which class is mistaken for which: the maps of the literature, as data.

A map is a tuple: class c turns into `map[c]`; a class that maps to itself is never corrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import NamedTuple, TypeAlias

from ncsam._errors import bad_value, known_name
from ncsam.noise.inputs import stream

ClassMap: TypeAlias = str | Mapping[int, int] | Sequence[int]

#: truck to automobile, bird to airplane, deer to horse, cat and dog into each other; the other five stay.
#: Patrini et al. 2017 (Making deep neural networks robust to label noise), and everyone since.
CIFAR10 = (0, 1, 0, 5, 7, 3, 6, 7, 8, 1)

#: The superclass (coarse label) of each of CIFAR-100's fine classes in index order; Krizhevsky 2009, and the clean
#: fine and coarse labels of CIFAR-100N.
# fmt: off
CIFAR100_SUPERCLASS = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11,
    6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5,
    5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
    10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
    16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)
# fmt: on

#: Blocks of five consecutive fine indices. CIFAR-100's fine classes are in alphabetical order, so a block is not a
#: superclass, although much code treats it as one: 6 % of the steps inside blocks stay in their superclass.
CIFAR100_BLOCK = tuple(fine // 5 for fine in range(100))


def next_in_group(groups: Sequence[int]) -> tuple[int, ...]:
    """Each class to the next one of its group, the last to the first; a class alone stays.

    Args:
        groups: The group of each class.
    """
    target = list(range(len(groups)))
    for group in set(groups):
        members = [label for label, its in enumerate(groups) if its == group]
        for here, after in zip(members, members[1:] + members[:1], strict=True):
            target[here] = after
    return tuple(target)


def swapped_pairs(groups: Sequence[int], seed: int) -> tuple[int, ...]:
    """Two classes of each group, chosen by `seed`, turn into each other; the others stay.

    Args:
        groups: The group of each class.
        seed: A whole number, 0 or larger.
    """
    rng = stream(seed, "swapped_pairs")
    target = list(range(len(groups)))
    for group in sorted(set(groups)):
        members = [label for label, its in enumerate(groups) if its == group]
        one, other = (int(label) for label in rng.choice(members, size=2, replace=False))
        target[one], target[other] = other, one
    return tuple(target)


class NamedMap(NamedTuple):
    """A map of the literature.

    Attributes:
        size: Number of classes; `None` for any.
        build: A function of the number of classes and the seed that returns the target of every class.
        used_by: Papers and code that use it.
    """

    size: int | None  #: number of classes; `None` for any
    build: Callable[[int, int], tuple[int, ...]]  #: from the number of classes and the seed
    used_by: str


MAPS: dict[str, NamedMap] = {
    "next_class": NamedMap(
        None,
        lambda size, seed: next_in_group([0] * size),
        "i to (i + 1) mod C, for any C; CTRR and DISC call it asymmetric on CIFAR-100",
    ),
    "cifar10": NamedMap(10, lambda size, seed: CIFAR10, "Patrini et al., DivideMix, ELR, UNICON, CTRR, APL, DISC"),
    "cifar100_blocks": NamedMap(
        100,
        lambda size, seed: next_in_group(CIFAR100_BLOCK),
        "next inside a block of five fine indices; Patrini et al., UNICON, APL, ELR",
    ),
    "cifar100_superclass": NamedMap(
        100,
        lambda size, seed: next_in_group(CIFAR100_SUPERCLASS),
        "next inside the true superclass; GJS",
    ),
    "cifar100_block_pairs": NamedMap(
        100,
        lambda size, seed: swapped_pairs(CIFAR100_BLOCK, seed),
        "two classes of each block of five, chosen by the seed, swap; SCE, early ELR",
    ),
}


def map_size(class_map: ClassMap) -> int | None:
    """How many classes a map has, where it says so itself.

    Args:
        class_map: As for `asymmetric`.
    """
    if isinstance(class_map, str):
        return MAPS[known_name("class map", class_map, MAPS)].size
    if isinstance(class_map, Mapping):
        return None
    if not isinstance(class_map, Sequence) and getattr(class_map, "ndim", 0) != 1:
        raise bad_value("class_map", class_map, "a name, the targets of all classes in order, or {class: target}")
    return len(class_map)


def resolve_map(class_map: ClassMap, num_classes: int, seed: int) -> tuple[int, ...]:
    """The target of every class.

    Args:
        class_map: A name of `MAPS`, the targets of all classes in order, or a dict of those that change.
        num_classes: C.
        seed: For maps that are drawn.
    """
    size = map_size(class_map)
    if size not in (None, num_classes):
        raise bad_value("num_classes", num_classes, f"{size}, as in the class map")
    if isinstance(class_map, str):
        return MAPS[class_map].build(num_classes, seed)
    pairs = class_map if isinstance(class_map, Mapping) else dict(enumerate(class_map))
    for source, target in pairs.items():
        whole = all(isinstance(each, Integral) and not isinstance(each, bool) for each in (source, target))
        if not whole or not (0 <= source < num_classes and 0 <= target < num_classes):
            raise bad_value("class_map", f"{source} to {target}", f"classes from 0 to {num_classes - 1}")
    return tuple(int(pairs.get(label, label)) for label in range(num_classes))
