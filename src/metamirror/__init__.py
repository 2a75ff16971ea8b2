"""Meta-learning in which the geometry of the inner level is a learned, exchangeable part."""

from metamirror import mirror_maps, models
from metamirror._version import __version__
from metamirror.core import priors
from metamirror.core.geometry import Geometry
from metamirror.core.learner import Adapted, Learner
from metamirror.core.tasks import Batch, Task
from metamirror.data import tasks
from metamirror.estimators.classifier import FewShotClassifier
from metamirror.estimators.regressor import FewShotRegressor
from metamirror.methods import METHODS, make_learner
from metamirror.parallel.allocator import tune_allocator
from metamirror.parallel.processes import Crew
from metamirror.storage.learner_file import load, save

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
