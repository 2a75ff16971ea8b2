"""What is known of a published data set, and how its images are found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metamirror.core.option_spec import NoOptions
from metamirror.data.image_set import ImageClass
from metamirror.data.installing.layouts import Layout


@dataclass(frozen=True)
class Benchmark:
    """A published data set.

    Attributes:
        name: what users type.
        title: the name people say, and who made it.
        licence: under which terms.
        source: where people get it.
        layouts: the forms in which it is accepted, tried in this order.
        forms: the same in words, for when none fits.
        size: height and width as stored.
        channels: 1 for grey, 3 for colour.
        classes: the official number of classes of each split.
        images: the official number of images in all.
        md5: checksums of official files, by file name; only those known for certain.
        downloads: stable addresses of official files, whose checksums are in `md5`; none where a
            licence or a form is between.
        inverted: whether paper is white in the originals; ink is 1 here.
        options: a frozen dataclass; its fields may follow the name.
        arrange: (classes as stored, options) -> classes as used; by default the same.
    """

    name: str
    title: str
    licence: str
    source: str
    layouts: Sequence[Layout]
    forms: str
    size: int
    channels: int
    classes: Mapping[str, int]
    images: int
    md5: Mapping[str, str] = field(default_factory=dict)
    downloads: Sequence[str] = ()
    inverted: bool = False
    options: type = NoOptions
    arrange: Callable[[Sequence[ImageClass], Any], Sequence[ImageClass]] = lambda stored, _: stored
