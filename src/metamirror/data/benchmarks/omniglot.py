"""Omniglot (Lake et al., 2015): 1,623 handwritten characters of 50 alphabets, 20 drawings each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from metamirror.data.image_set import ImageClass, with_quarter_turns
from metamirror.data.installing.layouts import Benchmark, Found, image_files, image_names
from metamirror.data.readers.source import Source

PLACE = re.compile(r"images_(background|evaluation)/([^/]+)/(character\d+)/[^/]+$")
ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
MD5 = {
    "images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
}

VAL = {"Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)"}
TEST = {
    "Kannada", "Keble", "Malayalam", "Manipuri", "Mongolian", "Old_Church_Slavonic_(Cyrillic)",
    "Oriya", "Sylheti", "Syriac_(Serto)", "Tengwar", "Tibetan", "ULOG",
}  # fmt: skip


@dataclass(frozen=True)
class OmniglotOptions:
    """How Omniglot is used."""

    # vinyals: 1028/172/423 characters by alphabet, as in the paper's code. finn: 1100/100/423 at
    # random, as in MAML's, whose own draw depended on the order of files on its machine and cannot
    # be had again; this one is fixed.
    partition: Literal["vinyals", "finn"] = "vinyals"
    turns: bool = True  # whether quarter turns make new classes, in every split.


def split_of(alphabet: str, character: str) -> str:
    """Return the split of Vinyals et al. (2016): whole alphabets, but for Gurmukhi's last four."""
    if alphabet in VAL:
        return "val"
    last_of_gurmukhi = alphabet == "Gurmukhi" and int(character.removeprefix("character")) > 41
    return "test" if alphabet in TEST or last_of_gurmukhi else "train"


def find(source: Source) -> Found | None:
    """Find `images_background/ALPHABET/characterNN/*.png`, and the same for images_evaluation."""
    matches = {name: match for name, _ in image_names(source) if (match := PLACE.search(name))}
    halves = {match[1] for match in matches.values()}
    if len(halves) == 1:
        (missing,) = {"background", "evaluation"} - halves
        raise ValueError(
            f"images_{missing} is missing in {source.path}: Omniglot comes in two halves; give the "
            f"folder that holds images_background.zip and images_evaluation.zip, or both unpacked"
        )
    return image_files(
        source,
        (
            ((split_of(match[2], match[3]), f"{match[2]}/{match[3]}"), name, name[: match.start()])
            for name, match in matches.items()
        ),
    )


def arrange(classes: Sequence[ImageClass], options: OmniglotOptions) -> tuple[ImageClass, ...]:
    """Return the classes of one of the two partitions, turned or not."""
    if options.partition == "finn":
        order = np.random.Generator(np.random.Philox(key=1100)).permutation(len(classes))
        # Test keeps its 423 whatever the number of classes; val takes 100 before them.
        place = {int(c): len(classes) - i for i, c in enumerate(order)}
        classes = [
            replace(c, split="test" if place[i] <= 423 else "val" if place[i] <= 523 else "train")
            for i, c in enumerate(sorted(classes, key=lambda c: c.name))
        ]
    return with_quarter_turns(classes) if options.turns else tuple(classes)


OMNIGLOT = Benchmark(
    name="omniglot",
    title="Omniglot (Lake, Salakhutdinov & Tenenbaum, 2015)",
    licence="MIT",
    source="https://github.com/brendenlake/omniglot, folder python",
    layouts=[find],
    forms="images_background.zip and images_evaluation.zip in one folder, packed or unpacked",
    size=28,
    channels=1,
    classes={"train": 1028, "val": 172, "test": 423},
    images=32_460,
    md5=MD5,
    downloads=[ADDRESS + file for file in MD5],
    inverted=True,
    options=OmniglotOptions,
    arrange=arrange,
)
