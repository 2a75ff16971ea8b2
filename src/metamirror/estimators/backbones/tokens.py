"""A module that looks up whole numbers as a backbone: tokens of a text, for example."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.estimators.backbones.backbone import (
    AT_ONCE,
    check_normalisation,
    evaluating,
    fingerprint_of,
    rows_of,
)
from metamirror.estimators.backbones.feature_cache import FeatureCache
from metamirror.estimators.inputs.images import image_shape
from metamirror.estimators.inputs.numbers import Numbers


def takes_tokens(module: nn.Module) -> bool:
    """Return whether a module looks up its inputs: networks for images convolve them first."""
    kinds = (nn.Embedding, nn.EmbeddingBag, nn.Conv2d)
    first = next((layer for layer in module.modules() if isinstance(layer, kinds)), None)
    return isinstance(first, nn.Embedding | nn.EmbeddingBag) and not image_shape(module)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A frozen module from whole numbers (examples, ...) to rows of numbers (examples, d)."""

    network: nn.Module
    name: str

    def __post_init__(self) -> None:
        check_normalisation(self.network, self.name)

    @property
    def facts(self) -> str:
        """What decides its features, in a word."""
        return fingerprint_of(self.network)[:32]

    def read(self, x: Any) -> Tensor:
        """Return one row of numbers for each example, in double precision."""
        tokens = Numbers(integers=True).read(x)
        if tokens.is_floating_point():
            raise ValueError(
                f"X does not hold whole numbers, and {self.name} looks them up in nn.Embedding: "
                f"give tokens; if it takes images, give metamirror.Backbone({self.name})"
            )
        # Keys are those of the content, which arrays of different shapes may share.
        cache = FeatureCache("-".join([self.facts, *map(str, tokens.shape[1:])]))
        return Numbers().read(torch.cat([cache(part, self) for part in tokens.split(AT_ONCE)]))

    @torch.no_grad()
    def features(self, tokens: Tensor) -> Tensor:
        """Return (examples, d) of whole numbers."""
        try:
            with evaluating(self.network) as device:
                output = self.network(tokens.to(device))
        except Exception as error:  # whatever a user's network raises
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{self.name} does not take whole numbers of shape {tuple(tokens.shape)} from "
                f"{int(tokens.min())} to {int(tokens.max())}: {words}"
            ) from error
        return rows_of(output, self.name, len(tokens))
