"""`effect-broker demo agent`: what is wrong with its options is said before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.commands import Cli
from effect_broker.cli.agent import _choice
from effect_broker.proof.agent.demo import JOURNAL


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--provider", "openai", "--model", "m"], "OpenAI needs a key in OPENAI_API_KEY"),
        (["--provider", "grok", "--model", "m"], "Grok needs a key in XAI_API_KEY"),
        (["--provider", "other"], "there is no provider 'other'"),
        (["--task", "Pay."], "the scripted model has one task"),
        (["--provider", "openai", "--task", " "], "--task says nothing"),
    ],
)
def test_options_that_cannot_be_are_one_line(
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("OPENAI_API_KEY", "XAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    lines = Cli(monkeypatch, capsys)("demo", "agent", *options).refused().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_directory_with_an_earlier_run_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / JOURNAL).touch()
    ended = Cli(monkeypatch, capsys)("demo", "agent", "--keep", tmp_path)
    assert "holds an earlier run" in ended.refused()


def test_the_key_of_the_model_is_for_the_agent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XAI_API_KEY", "xai-1")
    choice = _choice("grok", "m", None, True)
    assert "XAI_API_KEY" not in os.environ, "the API, the workers and the target would inherit it"
    assert choice.environment == {"XAI_API_KEY": "xai-1"}
    assert "xai-1" not in repr(choice)
