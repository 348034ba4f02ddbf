# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pages answer the questions of newcomers, and each on the second page at the latest, within two minutes of reading."""

from __future__ import annotations

import dataclasses

import pytest

import questions
from questions import QUESTIONS, Question, minutes


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.text)
def test_each_answer_is_near(question: Question) -> None:
    assert minutes(question) <= questions.MOST_MINUTES
    assert len({step.page for step in question.steps}) <= questions.MOST_PAGES
    for step, following in zip(question.steps, question.steps[1:], strict=False):
        if step.page != following.page:
            assert step.words == following.page.removeprefix("docs/" if step.page.startswith("docs/") else ""), "a link leads on"


def test_the_page_has_the_table() -> None:
    text = (questions.ROOT / questions.PAGE).read_text()
    assert questions.filled(text) == text


def test_an_answer_that_is_gone_is_noticed() -> None:
    first = QUESTIONS[0].steps[-1]
    for change in ({"words": "not there"}, {"heading": "not there"}):
        with pytest.raises(ValueError, match="not there"):
            minutes(Question("a", "b", (dataclasses.replace(first, **change),)))
