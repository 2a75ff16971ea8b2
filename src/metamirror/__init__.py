"""Meta-learning in which the geometry of the inner level is a learned, exchangeable part."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metamirror._version import __version__

if TYPE_CHECKING:
    from metamirror import mirror_maps, models
    from metamirror.core import priors
    from metamirror.core.adapted import Adapted
    from metamirror.core.geometry import Geometry, Preconditioner
    from metamirror.core.import_path import allow_module
    from metamirror.core.learner import Learner
    from metamirror.core.metrics import METRICS, Metric
    from metamirror.core.tasks import Batch, Task
    from metamirror.data import tasks
    from metamirror.estimators.backbones.backbone import Backbone
    from metamirror.estimators.few_shot import FewShotClassifier, FewShotRegressor
    from metamirror.methods import METHODS, make_learner
    from metamirror.parallel.allocator import tune_allocator
    from metamirror.parallel.task_pool import TaskPool
    from metamirror.storage.learner_file import load, save
    from metamirror.training.evaluate import evaluate

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

PLACES = {
    "METHODS": "methods",
    "METRICS": "core.metrics",
    "Adapted": "core.adapted",
    "Backbone": "estimators.backbones.backbone",
    "Batch": "core.tasks",
    "FewShotClassifier": "estimators.few_shot",
    "FewShotRegressor": "estimators.few_shot",
    "Geometry": "core.geometry",
    "Learner": "core.learner",
    "Metric": "core.metrics",
    "Preconditioner": "core.geometry",
    "Task": "core.tasks",
    "TaskPool": "parallel.task_pool",
    "allow_module": "core.import_path",
    "evaluate": "training.evaluate",
    "load": "storage.learner_file",
    "make_learner": "methods",
    "priors": "core",
    "save": "storage.learner_file",
    "tasks": "data",
    "tune_allocator": "parallel.allocator",
}
"""Where each public name stands: importing torch takes a second, which `--help` must not."""


def __getattr__(name: str) -> Any:
    """Import what stands behind a public name, or a package, when it is first used."""
    if name in PLACES:
        # As `from metamirror.core import priors` does, which is a module itself.
        module = __import__(f"metamirror.{PLACES[name]}", fromlist=[name])
        found = globals()[name] = getattr(module, name)
        return found
    if not name.startswith("_"):
        try:
            return import_module(f"metamirror.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"metamirror.{name}":
                raise
    raise AttributeError(f"module 'metamirror' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *PLACES]
