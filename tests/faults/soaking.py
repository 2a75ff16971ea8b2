"""Long service: what a process has of memory must not grow with what it has done."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import metamirror as mm
from metamirror.estimators.starts import SHIPPED
from metamirror.playground import limits
from metamirror.training.evaluate import evaluate_stream
from serving import served
from tests.playground.drawings import draw, request

SHARE = 0.05
"""By which memory may grow."""


def megabytes() -> float:
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) / 1024


def watch_memory(
    count: int, warm_up: int, act: Callable[[int], object], memory: Callable[[], float]
) -> dict[str, Any]:
    """Memory after a warm-up and at the end, of an act that is done `count` times after it."""
    for i in range(warm_up):
        act(i)
    gc.collect()
    points = [memory()]
    for i in range(count):
        act(warm_up + i)
        if (i + 1) % max(1, count // 10) == 0:
            gc.collect()
            points.append(memory())
    return {
        "times": count,
        "first_mb": round(points[0], 1),
        "last_mb": round(points[-1], 1),
        "largest_mb": round(max(points), 1),
        "growth": round(points[-1] / points[0] - 1, 4),
    }


def adapt(times: int, warm_up: int = 30) -> dict[str, Any]:
    """Adaptations of a shipped start to ever new tasks, and predictions of each."""
    stream = mm.tasks("glyphs", "test", queries=3, batch=1, seed=1)

    def act(i: int) -> None:
        task = stream.task(i, 0)
        fitted = mm.FewShotClassifier("glyphs-maml", device="cpu").fit(
            task.support.x, task.support.y.tolist()
        )
        fitted.predict_proba(task.query.x)

    return watch_memory(times, warm_up, act, megabytes)


def evaluate(times: int, warm_up: int = 10) -> dict[str, Any]:
    """Evaluations of a learner on four tasks each, after every step."""
    learner = mm.load(SHIPPED / "glyphs-metasgd")
    stream = mm.tasks("glyphs", "test", queries=3, batch=1)

    def act(i: int) -> None:
        evaluate_stream(learner, stream, 4, every_step=True, quiet=True)

    return watch_memory(times, warm_up, act, megabytes)


def serve(times: int, warm_up: int = 2 * limits.MOST_MODELS) -> dict[str, Any]:
    """Requests to a playground: every fiftieth adapts, the others ask, look, and make mistakes.

    The warm-up adapts alone, so that as many models are kept as ever are.
    """
    with served() as server:
        model = [""]

        def act(i: int) -> None:
            if i < warm_up or i % 50 == 0:
                status, content = server.ask("/api/adapt", request(steps=1, seed=i % 97))
                model[0] = json.loads(content)["model"]
                assert status == 200
            elif i % 5 == 1:
                assert server.ask(f"/api/samples/{i % 5}")[0] == 200
            elif i % 5 == 2:
                assert server.ask("/api/adapt", {"start": "x" * (i % 1000)})[0] == 422
            elif i % 5 == 3:
                assert server.ask("/api/starts")[0] == 200
            else:
                path = f"/api/models/{model[0]}/predict"
                assert server.ask(path, {"image": draw("ring", i)})[0] == 200

        return watch_memory(times, warm_up, act, server.megabytes)
