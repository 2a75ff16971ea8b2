"""Streams that the library has pass; what is wrong with a stream is found, and named."""

from __future__ import annotations

import pytest
import torch

import metamirror as mm
from metamirror.testing import check_task_stream
from tests.runs import Pictures


@pytest.mark.parametrize(
    "stream",
    [
        mm.tasks("sinusoid", shots=3, batch=3),
        mm.tasks("glyphs", shots=2, queries=3, batch=2),
        mm.tasks("glyphs", "test", batch=2, augment="flip,shift"),
    ],
    ids=["sinusoid", "glyphs", "augmented"],
)
def test_streams_of_the_library_pass(stream):
    check_task_stream(stream)


def stream(cls) -> Pictures:
    return cls("train", shots=2, queries=2, seed=0, batch=2)


class Random(Pictures):
    def task(self, step, index):
        support, query = super().task(step, index)
        return mm.Task(mm.Batch(support.x + torch.randn(()), support.y), query)


class InOrder(Pictures):
    drawn = 0

    def task(self, step, index):
        self.drawn += 1
        return super().task(step + self.drawn, index)


class SpendsRandomness(Pictures):
    def task(self, step, index):
        torch.rand(())
        return super().task(step, index)


class IgnoresTheStep(Pictures):
    def task(self, step, index):
        return super().task(min(step, 0), index)


class AsksForWhatItShowed(Pictures):
    def task(self, step, index):
        support, _ = super().task(step, index)
        return mm.Task(support, support)


class OtherShape(Pictures):
    example_shape = (1, 14, 14)


class TooManyOutputs(Pictures):
    outputs = 3

    def task(self, step, index):
        support, query = super().task(step, index)
        return mm.Task(mm.Batch(support.x, support.y.clamp(max=1)), query)


class LabelsOutOfRange(Pictures):
    def task(self, step, index):
        support, query = super().task(step, index)
        return mm.Task(support, mm.Batch(query.x, query.y + 1))


class AnswersAnything(Pictures):
    def task(self, step, index):
        return super().task(abs(step), abs(index))


class GivesNothing(Pictures):
    def task(self, step, index):
        return None


class GivesPlainTuples(Pictures):
    def task(self, step, index):
        return tuple(super().task(step, index))


class StacksOthers(Pictures):
    def stack(self, step, indices):
        return super().stack(step, [2 * i for i in indices])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Random, "changes with the order or with torch's random state"),
        (InOrder, "changes with the order"),
        (SpendsRandomness, "drawing a task changes torch's random state"),
        (IgnoresTheStep, "draw from both step and index"),
        (AsksForWhatItShowed, "no query that is not in its support set"),
        (OtherShape, r"an example has shape \(1, 28, 28\), but example_shape is \(1, 14, 14\)"),
        (TooManyOutputs, r"no support example of the labels \[2\]"),
        (LabelsOutOfRange, "holds the label 3"),
        (AnswersAnything, r"task\(-1, 0\) gives a task"),
        (GivesNothing, r"stream\[0\] fails: task\(step, index\) must return Task"),
        (GivesPlainTuples, "is no Task"),
        (StacksOthers, r"task 1 of stream\[1\] is not stream.task\(1, 1\)"),
    ],
)
def test_what_is_wrong_is_named(wrong, words):
    check_task_stream(stream(Pictures))
    with pytest.raises(AssertionError, match=words):
        check_task_stream(stream(wrong))
