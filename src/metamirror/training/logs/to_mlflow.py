"""MLflow: the store of $MLFLOW_TRACKING_URI, or the folder mlruns here."""

import io
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock
from PIL import Image

from metamirror.core.files import read_json, write_json
from metamirror.training.logs.log import Opening, Values

EXPERIMENT, FILE, LOCK = "metamirror", "mlflow.json", "metamirror.lock"
LONGEST = 500
"""What MLflow takes as the value of a parameter."""


class Tracker:
    """Writes metrics, images as artifacts, settings as parameters and versions as tags.

    A run that goes on is the same run of MLflow's.
    """

    def __init__(self, opening: Opening):
        # What keeps runs in a folder, and needs no database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        store = os.environ.get("MLFLOW_TRACKING_URI", Path("mlruns").absolute().as_uri())
        from mlflow.tracking import MlflowClient

        try:
            self._client = MlflowClient(store)
        except Exception:
            # Of several processes that make a folder at once, one may find it half made.
            self._client = MlflowClient(store)
        file = opening.folder / FILE
        if file.is_file() and opening.step >= 0:
            self._run = str(read_json(file)["run"])
            self._client.update_run(self._run, "RUNNING")
        else:
            own = experiment(self._client, store)
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

    def close(self, error: BaseException | None = None) -> None:
        stopped = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self._run, "FINISHED" if error is None else stopped)


def experiment(client: Any, store: str) -> str:
    """Return the experiment of all runs, one for however many begin at once."""
    from mlflow.exceptions import MlflowException

    with ExitStack() as stack:
        where = urlsplit(store)
        if where.scheme in ("", "file"):
            # A folder takes any number of experiments of one name; a server takes one.
            stack.enter_context(FileLock(Path(url2pathname(where.path), LOCK), timeout=60))
        if (known := client.get_experiment_by_name(EXPERIMENT)) is None:
            try:
                return str(client.create_experiment(EXPERIMENT))
            except MlflowException:
                # Another process may have been faster.
                if (known := client.get_experiment_by_name(EXPERIMENT)) is None:
                    raise
        return str(known.experiment_id)
