"""Meta-learning in which the geometry of the inner level is a learned, exchangeable part."""

from typing import TYPE_CHECKING, Any

from metamirror import mirror_maps, models
from metamirror._version import __version__
from metamirror.core import priors
from metamirror.core.geometry import Geometry, Preconditioner
from metamirror.core.import_path import allow_module
from metamirror.core.learner import Adapted, Learner
from metamirror.core.metrics import METRICS, Metric
from metamirror.core.tasks import Batch, Task
from metamirror.data import tasks
from metamirror.methods import METHODS, make_learner
from metamirror.parallel.allocator import tune_allocator
from metamirror.parallel.task_pool import TaskPool
from metamirror.storage.learner_file import load, save
from metamirror.training.evaluate import evaluate

if TYPE_CHECKING:
    from metamirror.estimators.backbones.backbone import Backbone
    from metamirror.estimators.few_shot import FewShotClassifier, FewShotRegressor

__all__ = [
    "METHODS",
    "METRICS",
    "Adapted",
    "Backbone",
    "Batch",
    "FewShotClassifier",
    "FewShotRegressor",
    "Geometry",
    "Learner",
    "Metric",
    "Preconditioner",
    "Task",
    "TaskPool",
    "__version__",
    "allow_module",
    "evaluate",
    "load",
    "make_learner",
    "mirror_maps",
    "models",
    "priors",
    "save",
    "tasks",
    "tune_allocator",
]


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first used, since that takes Pillow and time."""
    if name in ("FewShotClassifier", "FewShotRegressor"):
        from metamirror.estimators import few_shot

        return getattr(few_shot, name)
    if name == "Backbone":
        from metamirror.estimators.backbones.backbone import Backbone

        return Backbone
    raise AttributeError(f"module 'metamirror' has no attribute {name!r}")
