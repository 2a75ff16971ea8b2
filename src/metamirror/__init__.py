"""Meta-learning in which the geometry of the inner level is a learned, exchangeable part."""

from metamirror import mirror_maps, models, priors
from metamirror.allocator import tune_allocator
from metamirror.checkpoint import load, save
from metamirror.crew import Crew
from metamirror.data import tasks
from metamirror.estimator import FewShotClassifier, FewShotRegressor
from metamirror.geometry import Geometry
from metamirror.learner import Adapted, Learner
from metamirror.methods import METHODS, make_learner
from metamirror.types import Batch, Task
from metamirror.version import __version__

__all__ = [
    "METHODS",
    "Adapted",
    "Batch",
    "Crew",
    "FewShotClassifier",
    "FewShotRegressor",
    "Geometry",
    "Learner",
    "Task",
    "__version__",
    "load",
    "make_learner",
    "mirror_maps",
    "models",
    "priors",
    "save",
    "tasks",
    "tune_allocator",
]
