"""What a method is: filled slots, options, and a line in the table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from metamirror.core.geometry import Geometry
from metamirror.core.objectives import Objective
from metamirror.core.option_spec import NoOptions, read_options
from metamirror.core.priors import Prior
from metamirror.core.settings import Settings
from metamirror.core.start import Start

Group = Literal["paper", "relative", "own", "control"]

GROUPS: Mapping[Group, str] = {
    "paper": "In the paper",
    "relative": "Relatives",
    "own": "Your own",
    "control": "Controls",
}
"""The groups of methods with their titles, in the order in which tables list them."""


@dataclass(frozen=True)
class Parts:
    """The parts that a method puts into the learner's slots; None leaves the default."""

    model: nn.Module
    geometry: Geometry[Any] | None = None
    objective: Objective | None = None
    adapts: list[str] | None = None
    start: Start | None = None
    prior: Prior | None = None
    """The method's own, which one that the user gives replaces."""


@dataclass(frozen=True)
class Method:
    """A row of the registry.

    Attributes:
        key: the name users type.
        title: the name people say.
        optimizer: the lower-level optimiser, as in the paper's Table 1.
        geometry: the loss geometry model, as in the paper's Table 1.
        paper: who published it.
        build: (model, options, settings) -> the filled slots. The model is the learner's own copy.
        options: a frozen dataclass; its fields are what can follow the key.
        published: the accuracy that the paper's Table 1 lists for it, by shots.
        reported: what its own paper reports for miniImageNet, 5-way, 1-shot / 5-shot, with the
            network and what else decides it.
        recipe: settings of the outer level with which its authors trained it, where these are not
            the paper's common ones; `decay_every` is of 60,000 iterations.
        defaults: settings, or a prior, that the method starts from where the user gives none.
            `train` has a `norm` of its own, and gives that.
        group: "paper" for the rows of the paper's Table 1, "control" for what every method must
            beat, "relative" for the library's others, "own" for those of users.
        anneals: whether it follows `learner.progress`, so that a run's length decides its course.
        shaped: whether its geometry has parameters in the shape of what adapts. Beside a computed
            head, which has any number of outputs, it is then built for the body alone.
    """

    key: str
    title: str
    optimizer: str
    geometry: str
    paper: str
    build: Callable[[nn.Module, Any, Settings], Parts]
    options: type = NoOptions
    published: Mapping[int, str] = field(default_factory=dict)
    reported: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    group: Group = "own"
    anneals: bool = False
    shaped: bool = False

    def own_settings(self, steps: int | None, lr: float | None) -> tuple[int, float]:
        """Return K and alpha: as given, or else the method's own, or else those of all.

        >>> Method("m", "M", "GD", "identity", "nobody", build=print).own_settings(None, 0.5)
        (5, 0.5)
        """
        own = {"steps": Settings.steps, "lr": Settings.lr, **self.defaults}
        return own["steps"] if steps is None else steps, own["lr"] if lr is None else lr

    def steps_among_others(self, steps: int | None) -> int | None:
        """Return the K that it takes where one is given for many methods: none if it has none."""
        return 0 if self.defaults.get("steps") == 0 else steps

    def make_options(self, given: Mapping[str, Any], also: Sequence[str] = ()) -> Any:
        """Return the options object, from keywords or from the words of a command line.

        `also` has names that may have been meant by one that is no option of this method.
        """
        return read_options(self.key, self.options, given, also)
