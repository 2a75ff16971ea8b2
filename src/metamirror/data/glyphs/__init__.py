"""Letters of many scripts, drawn from matplotlib's fonts: a few-shot set that is always there."""

from metamirror.data.glyphs.alphabet import Letter, letters
from metamirror.data.glyphs.drawing import SAMPLES, SIDE, draw, render_letter, versions

__all__ = ["SAMPLES", "SIDE", "Letter", "draw", "letters", "render_letter", "versions"]
