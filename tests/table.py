"""The table that the shared tests walk. A new method adds one row here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """What the shared tests need to know of a method.

    Attributes:
        spec: key and options.
        starts_as: the method whose path it follows, exactly, at its start; None if none.
        no_finite_differences: why its meta-gradient is not the gradient of its value.
        straight_through: parameters whose gradient is defined otherwise: left out of differences.
        unused: (part of a parameter's name, why it has no gradient).
        acts_on_conv_bias: parameters of conv4's geometry that act on nothing but a bias in front
            of batch normalisation, which subtracts it: no gradient reaches them.
    """

    spec: str
    starts_as: str | None = "maml"
    no_finite_differences: str | None = None
    straight_through: str | None = None
    unused: tuple[tuple[str, str], ...] = ()
    acts_on_conv_bias: tuple[str, ...] = ()

    @property
    def exceptions(self) -> dict[str, Any]:
        """What `check_method` is told of it."""
        return {
            "starts_as": self.starts_as,
            "no_finite_differences": self.no_finite_differences,
            "straight_through": self.straight_through,
            "unused": [part for part, _ in self.unused],
        }


RATES = tuple(f"rates.{i}" for i in (1, 5, 9, 13))
FIRST_BLOCK = ("first_alpha.1", "first_mu.1")
CONNECTIONS = tuple(f"connections.{i}." for i in (0, 4, 8, 12))

ROWS = [
    Row("maml"),
    Row("metasgd", acts_on_conv_bias=RATES),
    Row("metasgd:positive=true", acts_on_conv_bias=RATES),
    Row("mtnet", starts_as=None, straight_through="geometry.logits"),
    Row("mtnet:masks=false"),
    Row("warpgrad"),
    Row("warpgrad:kernel=1:residual=true:head=true"),
    Row("warpgrad:batch_norm=true:activation=true", starts_as=None),
    Row("warpgrad:objective=trajectory", no_finite_differences="Leap's surrogate has no value"),
    Row(
        "warpgrad:objective=trajectory:start_rule=maml",
        no_finite_differences="visited points are constants",
    ),
    Row("metacurvature"),
    Row("metacurvature:variant=mc1:head=folded:vectors=false"),
    Row("metakfo"),
    Row("metakfo:psd=false"),
    Row("metakfo:hidden=2"),
    Row("metakfo:adapt_transform=true", starts_as=None),
    Row("ecml"),
    Row("ecml:gamma=0.5:closed_form=false"),
    Row("ecml:subset=all"),
    Row("ecml:subset=all:outputs=residuals"),
    Row("blockiaf", acts_on_conv_bias=FIRST_BLOCK),
    Row("blockiaf:start=dual", acts_on_conv_bias=FIRST_BLOCK),
    Row("blockiaf:parametrisation=standard:scale=bounded", acts_on_conv_bias=FIRST_BLOCK),
    Row("blockiaf:mixing=kronecker", acts_on_conv_bias=FIRST_BLOCK),
    Row("blockiaf:flows=2:mixing=kronecker", acts_on_conv_bias=FIRST_BLOCK),
    Row("blockiaf:blocks=tensor", acts_on_conv_bias=CONNECTIONS),
    Row("blockiaf:variant=paper", starts_as=None, acts_on_conv_bias=FIRST_BLOCK),
    Row(
        "blockiaf:variant=released",
        unused=(("geometry.g.", "heads whose factors are all zero stop every gradient"),),
    ),
    Row("gradnet"),
    Row("gradnet:form=kronecker:terms=2"),
    Row("gradnet:metric=diagonal:log_range=3"),
    Row("gradnet:form=elementwise"),
    Row("gradnet:start=dual"),
    Row("anil", starts_as=None),
    Row("snail:length=7:filters=16", starts_as=None),
    Row(
        "snail:length=7:filters=16:first_dilation=2",
        starts_as=None,
        unused=tuple((f"blocks.{i}.before", "the last dilation is 8") for i in (3, 7)),
    ),
]

FIRST = list({row.spec.partition(":")[0]: row.spec for row in reversed(ROWS)}.values())[::-1]
"""The first row of each method: with its defaults, unless these are made for larger tasks."""
