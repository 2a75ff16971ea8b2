r"""SNAIL: a network that reads the support set and a query, in place of an inner loop.

A task is a sequence: the support examples in an order drawn for the task, each with its features
beside its label, then one query with zeros for a label. Three attention blocks with two series of
dense blocks between them append to each place t what they find there and before it:

$$\text{dense: } \tanh(f_t) \odot \sigma(g_t), \quad (f_t, g_t) = A x_t + B x_{t-R} + b,$$
$$\text{attention: } \sum_{s \le t} p_{ts} v_s, \quad p_t = \mathrm{softmax}_{s \le t}
      (q_t \cdot k_s / \sqrt{K}).$$

A linear map of the last place gives the query's outputs. No place sees a later one, so that the
support set is read once for all queries of a task, and no query sees another.

The blocks are those of the paper's section 3.1. Their sizes are those on which public ports agree:
the paper's appendix A, which has them, was not at hand. What differs from the paper:

- Dilations are R = 1, 2, 4, ...; the paper's pseudocode has 2, 4, 8, ... (`first_dilation=2`), of
  which the last reaches before the beginning, while every other place is never seen.
- Features come from the learner's model. The 55.71 and 68.88 % that the paper reports on
  miniImageNet belong to an embedding of its own.
- Tasks have the shots that they are made with; there, 1 to 5 at random.
- Keys have no bias: the softmax would cancel it. They start equal to the queries.
- Rows are filled up with zeros to a multiple of 4, and values have at least 16 numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.core.geometry import Geometry, Inserted, PointState
from metamirror.core.lower_level import LowerLevel
from metamirror.core.settings import Settings
from metamirror.core.start import Start
from metamirror.core.tasks import Params
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts
from metamirror.models import head_of


@dataclass(frozen=True)
class Options:
    """Options of `snail`.

    Attributes:
        length: the longest sequence over which the dilations of the dense blocks reach, the query
            included; by default that of 5 ways and 5 shots. Attention reaches over any.
        first_dilation: the smallest of them, 1 or 2; they double from one dense block to the next.
        filters: of each dense block, a multiple of 16; keys and values grow with it. By default
            twice the number of features, up to the published 128.
        head: name of the layer that the network replaces; by default the last linear one.
    """

    length: int = 26
    first_dilation: int = 1
    filters: int | None = None
    head: str | None = None


class DenseBlock(nn.Module):
    """Appends a gated convolution of each place and the one `dilation` places before it."""

    def __init__(self, channels: int, filters: int, dilation: int):
        super().__init__()
        self.dilation = dilation
        self.now = nn.Linear(channels, 2 * filters)
        self.before = nn.Linear(channels, 2 * filters, bias=False)

    def forward(self, past: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return past (places, ...) and last (queries, ...), with new channels.

        Every query stands at the same place, the one behind the past.
        """
        places = past.shape[0]
        # Before the first place there is nothing.
        before = F.pad(self.before(past), (0, 0, self.dilation, 0))[: places + 1]
        f, g = (self.now(past) + before[:places]).chunk(2, -1)
        f_last, g_last = (self.now(last) + before[places]).chunk(2, -1)
        return (
            torch.cat([past, f.tanh() * g.sigmoid()], -1),
            torch.cat([last, f_last.tanh() * g_last.sigmoid()], -1),
        )


class AttentionBlock(nn.Module):
    """Appends what each place reads from itself and the places before it."""

    def __init__(self, channels: int, key_size: int, value_size: int):
        super().__init__()
        self.query = nn.Linear(channels, key_size)
        self.key = nn.Linear(channels, key_size, bias=False)
        self.value = nn.Linear(channels, value_size)
        self.scale = math.sqrt(key_size)
        # With equal queries and keys, scores begin as about x_t . x_s / sqrt(channels): a place
        # first reads from those like it.
        nn.init.normal_(self.key.weight, std=(channels * key_size) ** -0.25)
        with torch.no_grad():
            self.query.weight.copy_(self.key.weight)

    def forward(self, past: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return past (places, ...) and last (queries, ...), with new channels."""
        places = past.shape[0]
        keys, values = self.key(past), self.value(past)
        scores = self.query(past) @ keys.mT / self.scale
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        read = scores.masked_fill(later, -torch.inf).softmax(-1) @ values
        query = self.query(last)
        own = (query * self.key(last)).sum(-1, keepdim=True)
        shares = (torch.cat([query @ keys.mT, own], -1) / self.scale).softmax(-1)
        read_last = shares[:, :places] @ values + shares[:, places:] * self.value(last)
        return torch.cat([past, read], -1), torch.cat([last, read_last], -1)


class SequenceHead(Inserted):
    """Takes the place of a model's head: features of queries in, outputs from the memory out.

    Args:
        features: of one example, as the model's body gives them.
        outputs: ways, or the dimension of a regression target.
        options: of the method.
    """

    memory: Tensor
    """The support set, features beside labels: what a task's adaptation fills in."""
    labels: Tensor
    """Labels of the examples that come in: with them, the head returns what to remember."""

    def __init__(self, features: int, outputs: int, options: Options):
        super().__init__()
        depth = (options.length - 1).bit_length()
        filters = options.filters or min(128, 16 * -(-features // 8))
        # Rows of whole fours: a matrix product then rounds alike wherever a query stands in it.
        channels = 4 * -(-(features + outputs) // 4)
        self.spare = channels - features - outputs
        self.register_buffer("memory", torch.zeros(0, channels), persistent=False)
        self.register_buffer("labels", torch.zeros(0, outputs), persistent=False)
        self.blocks = nn.ModuleList()
        for part, key_size in enumerate((filters // 2, 2 * filters, 4 * filters)):
            for i in range(depth if part else 0):
                self.blocks.append(DenseBlock(channels, filters, options.first_dilation * 2**i))
                channels += filters
            value_size = max(16, key_size // 2)
            self.blocks.append(AttentionBlock(channels, key_size, value_size))
            channels += value_size
        self.output = nn.Linear(channels, outputs)

    @property
    def weight(self) -> Tensor:
        """The last layer's, from which models read the type of their head."""
        return self.output.weight

    def forward(self, features: Tensor) -> Tensor:
        if features.dim() != 2:
            raise ValueError(
                f"snail takes one vector of features an example, and its head is given "
                f"{tuple(features.shape)}: name another layer with head=..."
            )
        if self.labels.shape[0]:
            return F.pad(torch.cat([features, self.labels], 1), (0, self.spare))
        past, last = self.memory, F.pad(features, (0, self.memory.shape[1] - features.shape[1]))
        for block in self.blocks:
            past, last = block(past, last)
        output: Tensor = self.output(last)
        return output


class SupportMemory(Start):
    """A task begins at the learned parameters, with its support set in the head's memory."""

    shared = False

    def __init__(self, head: str, outputs: int):
        super().__init__()
        self.head, self.outputs = head, outputs

    def forward(self, theta: Params, lower: LowerLevel) -> Params:
        x, y = lower.batch
        if y.is_floating_point():
            labels = y.reshape(y.shape[0], -1)
        else:
            labels = y[:, None] == torch.arange(self.outputs, device=y.device)
        if labels.shape[1] != self.outputs:
            raise ValueError(
                f"an example has {labels.shape[1]} targets, and the model has {self.outputs} "
                f"outputs: build the model with as many outputs"
            )
        labels = labels.to(next(iter(theta.values())).dtype)
        memory = lower.predict({**theta, f"{self.head}labels": labels}, x)
        return {**theta, f"{self.head}memory": memory}


class RandomOrder(Geometry[PointState]):
    """No gradient changes anything. What remains of a task's noise is the order of its memory."""

    descends = False
    stochastic = True

    def __init__(self, head: str, length: int):
        super().__init__()
        self.head, self.length = head, length

    def draw(self, generator: torch.Generator) -> Params:
        return {"order": torch.rand(self.length, generator=generator, dtype=torch.float64)}

    def begin(self, theta: Params, prepared: None, noise: Params) -> PointState:
        memory = theta[f"{self.head}memory"]
        places = memory.shape[0]
        # Longer sequences than `length` use the draw again: an order, if not any with equal chance.
        keys = noise["order"].repeat(-(-places // self.length))[:places]
        order = keys.argsort(stable=True)
        return PointState({**theta, f"{self.head}memory": memory[order]})

    def primal(self, state: PointState) -> Params:
        return state.z

    def step(
        self, state: PointState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> PointState:
        return state

    def candidate_mirror_map(self, theta: Params) -> None:
        """Return None: where nothing descends, the question has no meaning."""
        return


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Replace the model's head by the network that reads a task as a sequence."""
    learned(model)  # which refuses a model that learns nothing
    if options.length < 2:
        raise ValueError(f"snail:length is {options.length}; a sequence has at least 2 places")
    if options.filters is not None and (options.filters < 1 or options.filters % 16):
        raise ValueError(f"snail:filters is {options.filters}; it is a multiple of 16")
    if options.first_dilation not in (1, 2):
        raise ValueError(f"snail:first_dilation is {options.first_dilation}; choose 1 or 2")
    name = head_of(model) if options.head is None else options.head
    linear = dict(model.named_modules()).get(name)
    if not isinstance(linear, nn.Linear):
        known = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        raise ValueError(f"snail:head is {name!r}; the model's linear layers are {known}")
    outputs = linear.out_features
    head = SequenceHead(linear.in_features, outputs, options)
    head.to(device=linear.weight.device, dtype=linear.weight.dtype)
    if name:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, head)
    path = f"{name}." if name else ""
    return Parts(
        model if name else head,
        RandomOrder(path, options.length),
        start=SupportMemory(path, outputs),
    )


METHOD = Method(
    key="snail",
    title="SNAIL",
    optimizer="NN-based",
    geometry="none",
    paper="Mishra, Rohaninejad, Chen, Abbeel 2018",
    reported="55.71 ± 0.99 / 68.88 ± 0.92, ResNet-12",
    build=build,
    options=Options,
    group="relative",
)
