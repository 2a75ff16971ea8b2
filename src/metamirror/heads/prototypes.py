r"""The head of prototypical networks: the nearest class mean, as a linear layer.

With $\mu_c$ the mean of the features of class c,

$$-\|x - \mu_c\|^2 = 2\mu_c^\top x - \|\mu_c\|^2 - \|x\|^2,$$

and the last term is the same for all classes: $w_c = 2\mu_c$ and $b_c = -\|\mu_c\|^2$ (Snell,
Swersky, Zemel 2017). As the start of gradient descent it is Proto-MAML's
(Triantafillou et al. 2020).
"""

from torch import Tensor

from metamirror.heads.computed import ComputedHead, indicators


class Prototypes(ComputedHead):
    """Squared Euclidean distances to the class means. It has no parameters."""

    needs_bias = True

    def weight_and_bias(self, features: Tensor, y: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        own = indicators(y, outputs, features, "prototypes")
        means = own.mT @ features / own.sum(0).unsqueeze(1)
        return 2 * means, -means.square().sum(1)
