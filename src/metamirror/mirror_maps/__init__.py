"""Inverse mirror maps g = (grad h)^-1, what is proven about each, and tools to examine them."""

from metamirror.core.mirror_map import Identity, MirrorMap
from metamirror.mirror_maps.base import bregman
from metamirror.mirror_maps.block_iaf import BlockIAF
from metamirror.mirror_maps.certify import Certificate, Counterexample, certify
from metamirror.mirror_maps.composition import Composition
from metamirror.mirror_maps.elementwise import Elementwise
from metamirror.mirror_maps.gradient_net import GradientNet
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.mirror_maps.mixing import KroneckerMixing
from metamirror.mirror_maps.partition import Partition
from metamirror.mirror_maps.power import Power
from metamirror.mirror_maps.quadratic import Diagonal, KroneckerMetric, Linear

__all__ = [
    "BlockIAF",
    "Certificate",
    "Composition",
    "Counterexample",
    "Diagonal",
    "Elementwise",
    "GradientNet",
    "Identity",
    "KroneckerMetric",
    "KroneckerMixing",
    "Linear",
    "MirrorDescent",
    "MirrorMap",
    "Partition",
    "Power",
    "bregman",
    "certify",
]
