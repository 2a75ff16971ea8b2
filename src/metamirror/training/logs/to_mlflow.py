"""MLflow: the store of $MLFLOW_TRACKING_URI, or the folder mlruns here."""

import io
import os
from pathlib import Path

from PIL import Image

from metamirror.core.files import read_json, write_json
from metamirror.training.logs.log import Opening, Values

EXPERIMENT, FILE = "metamirror", "mlflow.json"
LONGEST = 500
"""What MLflow takes as the value of a parameter."""


def open_log(opening: Opening) -> "MlflowLog":
    """Return the log of a run; one that goes on is the same run of MLflow's."""
    return MlflowLog(opening)


class MlflowLog:
    """Writes metrics, images as artifacts, settings as parameters and versions as tags."""

    def __init__(self, opening: Opening):
        # What keeps runs in a folder, and needs no database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        store = os.environ.get("MLFLOW_TRACKING_URI", Path("mlruns").absolute().as_uri())
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(store)
        file = opening.folder / FILE
        if file.is_file() and opening.step >= 0:
            self._run = str(read_json(file)["run"])
        else:
            known = self._client.get_experiment_by_name(EXPERIMENT)
            own = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
            self._run = self._client.create_run(own, run_name=opening.title).info.run_id
            write_json(file, {"run": self._run})
            for name, value in opening.config.items():
                self._client.log_param(self._run, name, str(value)[:LONGEST])
        for name, value in opening.versions.items():
            self._client.set_tag(self._run, name, str(value))
        # A metric has one history for ever: what was logged once is not logged again.
        self._last = {
            name: max(point.step for point in self._client.get_metric_history(self._run, name))
            for name in self._client.get_run(self._run).data.metrics
        }

    def add(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if value is not None and step > self._last.get(name, -1):
                self._client.log_metric(self._run, name, float(value), step=step)

    def image(self, name: str, png: bytes) -> None:
        self._client.log_image(self._run, Image.open(io.BytesIO(png)), f"{name}.png")

    def close(self) -> None:
        self._client.set_terminated(self._run)
