"""Inverse mirror maps g = (grad h)^-1, what is proven about each, and tools to examine them."""

from metamirror.mirror_maps.base import MirrorMap, bregman
from metamirror.mirror_maps.block_iaf import BlockIAF
from metamirror.mirror_maps.certify import Certificate, Witness, certify
from metamirror.mirror_maps.elementwise import Elementwise
from metamirror.mirror_maps.gradient_net import GradientNet
from metamirror.mirror_maps.partition import Partition
from metamirror.mirror_maps.quadratic import Diagonal, Identity, KroneckerMetric, Linear

__all__ = [
    "BlockIAF",
    "Certificate",
    "Diagonal",
    "Elementwise",
    "GradientNet",
    "Identity",
    "KroneckerMetric",
    "Linear",
    "MirrorMap",
    "Partition",
    "Witness",
    "bregman",
    "certify",
]
