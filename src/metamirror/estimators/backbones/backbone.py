"""A frozen network that turns images into rows of numbers, with its preprocessing."""

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from metamirror.console import Progress
from metamirror.core.normalisation import BatchNorm
from metamirror.estimators.backbones.feature_cache import FeatureCache
from metamirror.estimators.fitting import FixedStatistics
from metamirror.estimators.inputs.images import Images, image_rows
from metamirror.estimators.inputs.numbers import Numbers
from metamirror.storage.tensor_file import as_bytes

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
AT_ONCE = 32
"""Images that the network sees at a time."""
MANY = 64
"""The number of images from which on progress is shown."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network from images to rows of numbers, such as the body of a pretrained one.

    An image becomes the middle `crop` of its middle square, in `size` by `size` pixels from 0 to 1,
    less `mean`, divided by `std`. What the network gives may be rows (images, d), or feature maps
    (images, d, height, width), of which the mean over all places is taken.

    Args:
        network: a module, or a function from a tensor (images, channels, size, size) to a tensor.
        size: height and width of what it takes.
        crop: the share of the middle square that it sees.
        mean: of each channel, or of all.
        std: of each channel, or of all.
        channels: 3 for colour, 1 for grey.
        flip: give the mean over an image and its mirror image, which takes twice as long.
        name: what it is called in messages and files.
        fingerprint: a checksum of what it computes. Features are kept on disk under it; by default
            a module has that of its parameters, and a function has none, and keeps none.
        kept: False keeps no features on disk.

    >>> import metamirror as mm
    >>> body = mm.Backbone(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), size=32)
    >>> body.read(torch.rand(2, 3, 48, 64)).shape
    torch.Size([2, 8])
    """

    network: Callable[[Tensor], Any]
    size: int = 224
    crop: float = 0.875
    mean: Sequence[float] | float = IMAGENET_MEAN
    std: Sequence[float] | float = IMAGENET_STD
    channels: int = 3
    flip: bool = False
    name: str = "a network"
    fingerprint: str | None = None
    kept: bool = True

    def __post_init__(self) -> None:
        for name in ("size", "channels"):
            if not isinstance(value := getattr(self, name), int) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number from 1")
        if not isinstance(self.crop, int | float) or not 0 < self.crop <= 1:
            raise ValueError(f"crop is {self.crop!r}; a share above 0 and at most 1")
        if not isinstance(self.flip, bool):
            raise ValueError(f"flip is {self.flip!r}; give True or False")
        for name in ("mean", "std"):
            values = self._by_channel(getattr(self, name), name)
            if not all(map(math.isfinite, values)) or (name == "std" and min(values) <= 0):
                raise ValueError(f"{name} is {values}; give finite numbers, for std above 0")
            object.__setattr__(self, name, values)
        check_normalisation(self.network, self.name)

    def _by_channel(self, value: Any, name: str) -> tuple[float, ...]:
        values = tuple(value) if isinstance(value, Sequence) else (value,)
        if self.channels == 1 and len(values) == 3:
            values = (sum(values) / 3,)
        if len(values) not in (1, self.channels) or not all(
            isinstance(v, int | float) for v in values
        ):
            raise ValueError(f"{name} is {value!r}; give one number, or one for each channel")
        return tuple(map(float, values * (self.channels // len(values))))

    @property
    def is_module(self) -> bool:
        """Whether torch can export it as part of a graph."""
        return isinstance(self.network, nn.Module)

    @property
    def images(self) -> Images:
        """What makes images of this size of anything that a user has."""
        return Images(self.channels, self.size, crop=self.crop)

    def read(self, x: Any) -> Tensor:
        """Return one row of numbers for each image, in double precision."""
        rows = image_rows(x)
        facts = self.facts if self.kept else None
        cache = None if facts is None else FeatureCache(facts)
        found: list[Tensor] = []
        title = f"features of {self.name}"
        with Progress(title, len(rows), quiet=len(rows) < MANY) as progress:
            for start in range(0, len(rows), AT_ONCE):
                images = self.images.read(rows[start : start + AT_ONCE])
                found.append(self.features(images) if cache is None else cache(images, self))
                progress.update(min(start + AT_ONCE, len(rows)), "")
        return Numbers().read(torch.cat(found))

    @property
    def facts(self) -> str | None:
        """What decides its features, in a word: network and preprocessing; None if not known."""
        network = self.fingerprint
        if network is None and isinstance(self.network, nn.Module):
            network = fingerprint_of(self.network)
        if network is None:
            return None
        own: tuple[Any, ...] = (network, self.size, self.crop, self.mean, self.std, self.channels)
        if self.flip:
            own += ("flip",)
        return hashlib.sha256(repr(own).encode()).hexdigest()[:32]

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return (images, d) of images that have its size, as floats from 0 to 1."""
        return both_sides(self._of_one_side, images) if self.flip else self._of_one_side(images)

    def _of_one_side(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (self.mean, self.std))
        try:
            with evaluating(self.network) as device:
                output = self.network(((images - mean) / std).to(device))
        except Exception as error:  # whatever a user's network raises
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{self.name} does not take images of {self.channels} x {self.size} x {self.size}: "
                f"{words}"
            ) from error
        return rows_of(output, self.name, len(images))


def both_sides(features: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean of the features of images and of their mirror images."""
    return (features(images) + features(images.flip(-1))) / 2


def check_normalisation(network: Any, name: str) -> None:
    """Refuse a module that normalises by the batch: features would depend on the other examples."""
    layers = dict(network.named_modules()) if isinstance(network, nn.Module) else {}
    fixed = any(isinstance(layer, FixedStatistics) for layer in layers.values())
    for place, layer in layers.items():
        torchs = isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None
        if torchs or (isinstance(layer, BatchNorm) and not fixed):
            raise ValueError(
                f"{name} normalises by the batch in {place or 'itself'}, without running averages, "
                f"so that features would depend on the other examples: build it with "
                f"track_running_stats=True and let it see images in training mode; a run of "
                f"metamirror is named by its folder"
            )


def rows_of(output: Any, name: str, count: int) -> Tensor:
    """Return what a network gave for `count` examples as rows, or raise a ValueError."""
    if not isinstance(output, Tensor):
        raise ValueError(
            f"{name} gives {type(output).__name__}: wrap it in a function that returns one tensor "
            f"(examples, d)"
        )
    rows = pooled(output.float().cpu(), name)
    if len(rows) != count:
        raise ValueError(
            f"{name} gives {tuple(rows.shape)} for {count} examples: a backbone gives one row of "
            f"numbers for each"
        )
    return rows


def pooled(output: Tensor, name: str) -> Tensor:
    """Return the mean of feature maps over all places; rows stay as they are."""
    if output.dim() == 3:
        raise ValueError(
            f"{name} gives {tuple(output.shape)}, as a transformer gives (examples, tokens, d): "
            f"let it give the class token, x[:, 0], or the mean over tokens, x.mean(1)"
        )
    if output.dim() not in (2, 4):
        raise ValueError(
            f"{name} gives {tuple(output.shape)}: a backbone gives one row of numbers for each "
            f"example, or feature maps (images, d, height, width)"
        )
    return output.flatten(2).mean(2) if output.dim() == 4 else output


class FeatureModule(nn.Module):
    """A backbone as one module: images of its size in, features out."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone):
        super().__init__()
        assert isinstance(backbone.network, nn.Module)
        self.network = copy.deepcopy(backbone.network).cpu().eval().requires_grad_(False)
        self.flip, self.name = backbone.flip, backbone.name
        for name in ("mean", "std"):
            values = torch.tensor(getattr(backbone, name))
            self.register_buffer(name, values.view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return both_sides(self._of_one_side, images) if self.flip else self._of_one_side(images)

    def _of_one_side(self, images: Tensor) -> Tensor:
        return pooled(self.network((images - self.mean) / self.std), self.name)


@contextmanager
def evaluating(network: Any) -> Iterator[torch.device]:
    """Run a module in evaluation mode, and leave it as it was; give the module's device."""
    modules = list(network.modules()) if isinstance(network, nn.Module) else []
    before = [module.training for module in modules]
    tensors = (t for module in modules for t in (*module.parameters(), *module.buffers()))
    try:
        for module in modules:
            module.training = False
        yield next(tensors, torch.empty(0)).device
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


_fingerprints: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()


def fingerprint_of(module: nn.Module) -> str:
    """Return a checksum of a module's structure, parameters and buffers.

    What else its forward depends on, a plain attribute for example, is not seen.
    """
    tensors = [*module.parameters(), *module.buffers()]
    # Changes through `.data` count no version; sums are far cheaper than a checksum.
    state = tuple((id(t), t._version, *_sums(t)) for t in tensors)
    if module in _fingerprints and _fingerprints[module][0] == state:
        return _fingerprints[module][1]
    digest = hashlib.sha256(f"{type(module).__qualname__}\n{module!r}".encode())
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(as_bytes(value))
    _fingerprints[module] = state, digest.hexdigest()
    return digest.hexdigest()


@torch.no_grad()
def _sums(values: Tensor) -> tuple[float, float]:
    """Return two numbers that a change of the values rarely leaves alone."""
    values = values if values.is_floating_point() else values.double()
    return float(values.sum()), float(torch.linalg.vector_norm(values))
