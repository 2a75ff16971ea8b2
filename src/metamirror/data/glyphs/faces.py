"""The twelve DejaVu faces that matplotlib ships, and the ink of their letters."""

import hashlib
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FACES = tuple(
    f"DejaVu{family}{style}"
    for family, slanted in (("Sans", "Oblique"), ("SansMono", "Oblique"), ("Serif", "Italic"))
    for style in ("", f"-{slanted}", "-Bold", f"-Bold{slanted}")
)
"""The two Display faces are left out: they hold a handful of mathematical signs."""

SIZE = 112
"""Font size in pixels to the em: a capital is then about 80 pixels high."""

# Large enough to tell a glyph from the .notdef box.
_SMALL = 24


def face_path(face: str) -> Path:
    """Return the font file of a face."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")
    if not path.is_file():
        raise ValueError(f"there is no {path}; matplotlib ships it: install that anew from PyPI")
    return path


@cache
def characters(face: str) -> frozenset[str]:
    """Return the characters to which the face's map gives a glyph."""
    return frozenset(map(chr, FT2Font(str(face_path(face))).get_charmap()))


def shows(face: str, character: str) -> bool:
    """Return whether the face draws the character: neither nothing nor the .notdef box."""
    if character not in characters(face):
        return False
    ink = _draw(face, character, _SMALL)
    return ink.getbbox() is not None and ink.tobytes() != _missing(face)


def bitmap(face: str, character: str) -> NDArray[np.uint8]:
    """Return the ink of a letter, 255 on 0, cropped to it."""
    ink = _draw(face, character, SIZE)
    return np.asarray(ink.crop(ink.getbbox()))


@cache
def files_digest() -> str:
    """Return a checksum of the twelve files: some distributors replace them by their own."""
    contents = b"".join(face_path(face).read_bytes() for face in FACES)
    return hashlib.sha256(contents).hexdigest()[:16]


@cache
def _missing(face: str) -> bytes:
    # No font has a glyph for a code point that will never be assigned: it shows the .notdef box.
    return _draw(face, "\U0010ffff", _SMALL).tobytes()


def _draw(face: str, character: str, size: int) -> Image.Image:
    # The widest letter of these faces takes 2.1 ems, and some begin left of where they are put.
    image = Image.new("L", (4 * size, 3 * size))
    ImageDraw.Draw(image).text((size, size), character, fill=255, font=_font(face, size))
    return image


@cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    # Basic layout: a letter's image must not depend on whether libraqm is there.
    return ImageFont.truetype(face_path(face), size, layout_engine=ImageFont.Layout.BASIC)
