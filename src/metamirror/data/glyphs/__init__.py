"""Letters of many scripts, drawn from matplotlib's fonts: a few-shot set that is always there."""

from __future__ import annotations

from metamirror.data.glyphs.alphabet import Letter, letters
from metamirror.data.glyphs.drawing import FORMAT, SIDE, draw, render, render_letter, versions

__all__ = ["FORMAT", "SIDE", "Letter", "draw", "letters", "render", "render_letter", "versions"]
