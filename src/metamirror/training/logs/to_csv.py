"""metrics.csv: one figure a line, for spreadsheets."""

import csv
import io

from metamirror.core.files import write_atomically
from metamirror.training.logs.log import Opening, Values

FILE, HEADER = "metrics.csv", ("step", "name", "value")


class Tracker:
    """Writes step, name and value, without lines that the run's checkpoint does not know."""

    def __init__(self, opening: Opening):
        self._folder = opening.folder
        file = self._folder / FILE
        kept = [HEADER]
        if file.is_file():
            with file.open(newline="") as before:
                rows = [row for row in csv.reader(before) if len(row) == 3 and row[0].isdecimal()]
            kept += [(row[0], row[1], row[2]) for row in rows if int(row[0]) <= opening.step]
        content = io.StringIO()
        csv.writer(content, lineterminator="\n").writerows(kept)
        write_atomically(file, content.getvalue().encode())
        self._file = file.open("a", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def add(self, step: int, values: Values) -> None:
        self._writer.writerows((step, name, v) for name, v in values.items() if v is not None)
        self._file.flush()

    def image(self, name: str, png: bytes) -> None:
        write_atomically(self._folder / f"{name}.png", png)

    def close(self, error: BaseException | None = None) -> None:
        self._file.close()
