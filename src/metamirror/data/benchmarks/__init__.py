"""The published data sets, one file each."""

from __future__ import annotations

from metamirror.data.benchmarks.cifar_fs import CIFAR_FS
from metamirror.data.benchmarks.cub import CUB
from metamirror.data.benchmarks.fc100 import FC100
from metamirror.data.benchmarks.mini_imagenet import MINI_IMAGENET
from metamirror.data.benchmarks.omniglot import OMNIGLOT
from metamirror.data.benchmarks.tiered_imagenet import TIERED_IMAGENET
from metamirror.data.installing.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b for b in (OMNIGLOT, MINI_IMAGENET, TIERED_IMAGENET, CIFAR_FS, FC100, CUB)
}

__all__ = ["BENCHMARKS", "Benchmark"]
