"""How much a page may ask of the machine that serves it. Memory is bounded by these numbers."""

BODY_BYTES = 2_000_000
"""Of a request: 25 colour images of the largest size, and room to spare."""
DRAIN_BYTES = 64_000_000
"""Of a refused request that are read and dropped, so that its sender gets to see the reason."""
HEADER_SECONDS = 10.0
"""Within which a connection has to say what it wants."""
BODY_SECONDS = 20.0
"""Within which a request has to arrive."""

FEWEST_CLASSES, MOST_CLASSES = 2, 5
MOST_EXAMPLES = 5
"""Of a class."""
NAME_LETTERS = 40
MOST_STEPS = 20
LARGEST_LR = 10.0

SMALLEST_SIDE, LARGEST_SIDE = 8, 128
"""Of an image, in pixels."""
MOST_STROKES, MOST_POINTS = 100, 1_500
"""Of a drawing."""

MOST_WAITING = 100
"""Requests that wait for a worker; the next one is asked to come back."""
RETRY_SECONDS = 2
MOST_MODELS = 64
"""Adapted models that are kept; the one not used for longest goes first."""
MODEL_BYTES = 256_000_000
"""That they may take together."""
CONNECTIONS = 200
