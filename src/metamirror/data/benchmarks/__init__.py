"""The published data sets."""

from metamirror.data.benchmarks.cifar_100 import CIFAR_FS, FC100
from metamirror.data.benchmarks.cub import CUB
from metamirror.data.benchmarks.imagenet import MINI_IMAGENET, TIERED_IMAGENET
from metamirror.data.benchmarks.omniglot import OMNIGLOT
from metamirror.data.installing.layouts import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b for b in (OMNIGLOT, MINI_IMAGENET, TIERED_IMAGENET, CIFAR_FS, FC100, CUB)
}
