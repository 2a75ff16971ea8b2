"""What `Images` does with an image, as a module that an exporter can put into a graph.

Pillow resamples with Lanczos windows, which ONNX's own Resize does not have. A row of the result is
a weighted sum of the image's rows, so two matrix products do it; their weights are computed from
the size of the image at hand.
"""

import torch
from torch import Tensor, nn

LOBES = 3  # of the Lanczos window, on each side
GREY = (19595, 38470, 7471)  # Pillow's luminance, in 65536ths


class RawImages(nn.Module):
    """Turns bytes (examples, height, width, 3), red first, into what a network for images takes.

    The same as `Images.read` but for rounding, by which a few pixels differ by one shade of 255.
    More do in images that are taller than wide: Pillow rounds between its two passes, and from
    version 13 may begin with the other one there.

    >>> RawImages(1, 28, invert=False)(torch.zeros(2, 40, 50, 3, dtype=torch.uint8)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, channels: int, size: int, invert: bool, crop: float = 1):
        super().__init__()
        self.channels, self.size, self.invert, self.crop = channels, size, invert, crop

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[1:3]
        pixels = images.permute(0, 3, 1, 2)
        if self.channels == 1:
            shades = pixels.int() * torch.tensor(GREY, dtype=torch.int32)[:, None, None]
            pixels = (shades.sum(1, keepdim=True, dtype=torch.int32) + 2**15) // 2**16
        # Counted as tensors: the sizes are known when the graph runs.
        rows, columns = torch.arange(height), torch.arange(width)
        short = torch.minimum(rows[-1], columns[-1]) + 1
        # Pillow rounds to bytes after each of its two passes.
        found = as_bytes(pixels.float() @ self.weights(columns, short).T)
        found = as_bytes(self.weights(rows, short) @ found) / 255
        return 1 - found if self.invert else found

    def weights(self, places: Tensor, short: Tensor) -> Tensor:
        """Return (size, places): how much of each place there is in each pixel of the result."""
        left = (places.shape[0] - short) // 2 + short * (1 - self.crop) / 2
        scale = short * self.crop / self.size
        centres = (torch.arange(self.size) + 0.5) * scale
        # The window is widened where the image shrinks, and reaches beyond the square.
        x = (places - left + 0.5 - centres[:, None]) / scale.clamp(min=1)
        window = torch.where(x.abs() < LOBES, torch.sinc(x) * torch.sinc(x / LOBES), 0.0)
        return window / window.sum(1, keepdim=True)


def as_bytes(values: Tensor) -> Tensor:
    """Return whole numbers in 0..255, as floats."""
    return (values + 0.5).floor().clamp(0, 255)
