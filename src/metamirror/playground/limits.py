"""How much a page may ask of the machine that serves it. Memory is bounded by these numbers."""

BODY_BYTES = 12_000_000  # of a request: 400 colour images of 84 x 84 pixels, 45 of 256 x 256
DRAIN_BYTES = 64_000_000  # of a refused request, read and dropped so that its sender sees why
HEADER_SECONDS = 10.0  # within which a connection has to say what it wants
BODY_SECONDS = 20.0  # within which a request has to arrive

FEWEST_CLASSES, MOST_CLASSES = 2, 20  # some starts tell fewer apart
MOST_EXAMPLES = 20  # of a class
NAME_LETTERS = 40
MOST_STEPS = 20
MOST_WORK = 2_000  # examples times steps
PLAIN_WORK = 100  # examples times steps of gradient descent, beside starts for photographs
LARGEST_LR = 10.0

SMALLEST_SIDE, LARGEST_SIDE = 8, 256  # of an image, in pixels
SAVED_SIDE = 512  # of an image that a model from a file is asked about: it comes alone
MOST_STROKES, MOST_POINTS = 100, 1_500  # of a drawing

MOST_WAITING = 100  # requests that wait for a worker; the next one is asked to come back
RETRY_SECONDS = 2
MOST_MODELS = 64  # adapted models that are kept; the one not used for longest goes first
MODEL_BYTES = 256_000_000  # that they may take together
CONNECTIONS = 200
