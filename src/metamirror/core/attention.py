"""Fused attention, which has no second derivative: the plain formula while one is taken."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


class _PlainAttention:
    """Holds torch's choice of attention kernels while anybody is inside.

    The choice is one for all threads, and tasks run in several: the last one out restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._held: AbstractContextManager[Any]
        self._fast_path = True

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._held = sdpa_kernel(SDPBackend.MATH)
                self._held.__enter__()
                # That of nn.MultiheadAttention and nn.TransformerEncoderLayer, in evaluation.
                self._fast_path = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._held.__exit__(None, None, None)
                    torch.backends.mha.set_fastpath_enabled(self._fast_path)


plain_attention = _PlainAttention()
"""`with plain_attention():` runs `scaled_dot_product_attention` as products and a softmax."""


class AttentionWatch(TorchFunctionMode):
    """Notices whether attention is called inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        self.seen |= "attention" in name or "transformer" in name
        return func(*args, **(kwargs or {}))
