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
        one_order: why its meta-gradient is the same at first order.
        classes: whether it takes labels alone, and no real targets.
        acts_on_conv_bias: parameters of conv4's geometry that act on nothing but a bias in front
            of batch normalisation, which subtracts it: no gradient reaches them.
    """

    spec: str
    starts_as: str | None = "maml"
    no_finite_differences: str | None = None
    straight_through: str | None = None
    unused: tuple[tuple[str, str], ...] = ()
    one_order: str | None = None
    classes: bool = False
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
LOG_VARIANCES = tuple(f"log_variance_{i:02}" for i in (1, 5, 9, 13))
NOT_THERE_YET = "the derivative of a minimum, which K steps do not reach"

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
    Row("gradnet:scaling=diagonal:log_range=3"),
    Row("gradnet:form=elementwise"),
    Row("gradnet:start=dual"),
    Row("gap"),
    Row("gap:layers=all"),
    Row("gap:approximate=true"),
    Row("metamd", acts_on_conv_bias=RATES),
    Row("metamd:form=pnorm", acts_on_conv_bias=RATES),
    Row("metamd:form=pnorm:start=dual", acts_on_conv_bias=RATES),
    Row(
        "metamd:learn_start=false",
        straight_through="model.",
        acts_on_conv_bias=RATES,
        unused=(("model.", "the start stays as it is"),),
    ),
    Row(
        "reptile",
        no_finite_differences="the direction to the adapted parameters is no gradient",
        one_order="no derivative of the path is taken",
    ),
    Row("fomaml", no_finite_differences="inner gradients are taken as constants"),
    Row("boil", starts_as=None),
    # Its batch normalisations do not adapt, as MAML's do.
    Row("mamlpp", starts_as=None),
    Row("mamlpp:norms=false"),
    # A forget gate below 1 shrinks the parameters from the first step on.
    Row("metalstm", starts_as=None, no_finite_differences="inner gradients are constants"),
    Row("anil", starts_as=None),
    Row("protonet", starts_as="protomaml", classes=True),
    Row("protomaml", starts_as=None, classes=True),
    Row("r2d2", starts_as="maml:start=ridge"),
    Row("metaoptnet", starts_as=None, classes=True),
    Row("maml:start=ridge", starts_as=None),
    Row("anil:start=prototypes", starts_as=None, classes=True),
    Row("mtnet:masks=false:start=svm", starts_as="metaoptnet", classes=True),
    Row("warpgrad:start=ridge", starts_as="r2d2"),
    Row("metasgd:start=svm", starts_as="metaoptnet", classes=True, acts_on_conv_bias=RATES),
    Row(
        "blockiaf:start=prototypes",
        starts_as="protomaml",
        classes=True,
        acts_on_conv_bias=FIRST_BLOCK,
    ),
    Row(
        "gradnet:start=prototypes:adjoint=first",
        starts_as="protomaml",
        classes=True,
        no_finite_differences="first order leaves a part of the gradient out",
    ),
    Row("imaml", starts_as=None, no_finite_differences=NOT_THERE_YET),
    Row("imaml:lam=3:adjoint=unrolled", starts_as=None),
    Row(
        "ibaml",
        starts_as=None,
        no_finite_differences=NOT_THERE_YET,
        acts_on_conv_bias=LOG_VARIANCES,
    ),
    Row(
        "ibaml:adjoint=unrolled:objective=query:samples=2",
        starts_as=None,
        acts_on_conv_bias=LOG_VARIANCES,
    ),
    Row("snail:length=7:filters=16", starts_as=None, one_order="there is no inner loop"),
    Row(
        "snail:length=7:filters=16:first_dilation=2",
        starts_as=None,
        one_order="there is no inner loop",
        unused=tuple((f"blocks.{i}.before", "the last dilation is 8") for i in (3, 7)),
    ),
]

FIRST = list({row.spec.partition(":")[0]: row.spec for row in reversed(ROWS)}.values())[::-1]
"""The first row of each method: with its defaults, unless these are made for larger tasks."""


def row_of(method: str) -> Row:
    """The row of a method with its default options."""
    return next(row for row in ROWS if row.spec == method)
