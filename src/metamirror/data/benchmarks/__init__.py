"""The published data sets, one file each (two where they share their pictures)."""

from __future__ import annotations

from metamirror.data.benchmarks.benchmark import Benchmark
from metamirror.data.benchmarks.cifar import CIFAR_FS, FC100
from metamirror.data.benchmarks.cub import CUB
from metamirror.data.benchmarks.imagenet import MINI_IMAGENET, TIERED_IMAGENET
from metamirror.data.benchmarks.omniglot import OMNIGLOT

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b for b in (OMNIGLOT, MINI_IMAGENET, TIERED_IMAGENET, CIFAR_FS, FC100, CUB)
}

__all__ = ["BENCHMARKS", "Benchmark"]
