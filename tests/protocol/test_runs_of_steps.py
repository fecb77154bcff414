"""The loop of a run, by its numbers: how many steps, and after which waits."""

from __future__ import annotations

import pytest

from effect_broker.protocol.run import StepResult, drive, opened

NOW = "2026-01-01T00:00:00+00:00"


class Steps:
    """Steps that always say the same, and count how often they are entered."""

    def __init__(self, following: str, at: str | None = None) -> None:
        self.entered: list[str] = []
        self._said: StepResult = {
            "next": following,
            "version": 7,
            "ordinal": 3,
            "state": "retryable",
            "at": at,
            "now": NOW,
        }

    async def reserve(self) -> StepResult:
        self.entered.append("reserve")
        return self._said

    async def dispatch(self, version: int, ordinal: int) -> StepResult:
        self.entered.append(f"dispatch {version} {ordinal}")
        return self._said

    async def probe(self, version: int) -> StepResult:
        self.entered.append(f"probe {version}")
        return self._said


@pytest.mark.parametrize(
    ("following", "step"),
    [("reload", "reserve"), ("dispatch", "dispatch 7 3"), ("probe", "probe 7")],
)
async def test_a_run_hands_over_after_sixty_four_steps(following: str, step: str) -> None:
    steps = Steps(following)
    assert await drive(steps) == "retryable"
    assert steps.entered == ["reserve", *[step] * 64]


@pytest.mark.parametrize(
    ("at", "entered"),
    [
        ("2026-01-01T00:00:04+00:00", 65),
        ("2026-01-01T00:00:05+00:00", 65),
        ("2026-01-01T00:00:05.000001+00:00", 1),
        ("2026-01-01T01:00:00+00:00", 1),
    ],
)
async def test_a_run_goes_on_after_a_wait_of_five_seconds_and_no_more(
    at: str, entered: int
) -> None:
    steps = Steps("wait", at)
    await drive(steps)
    assert len(steps.entered) == entered


async def test_a_run_that_has_ended_enters_no_further_step() -> None:
    steps = Steps("end")
    assert await drive(steps) == "retryable"
    assert steps.entered == ["reserve"]


class Answers(Steps):
    """Parts of a step that say in turn what is next."""

    def __init__(self, *following: str) -> None:
        super().__init__("end")
        self._following = list(following)

    def _answer(self) -> StepResult:
        return {**self._said, "next": self._following.pop(0)}

    async def reserve(self) -> StepResult:
        await super().reserve()
        return self._answer()

    async def dispatch(self, version: int, ordinal: int) -> StepResult:
        await super().dispatch(version, ordinal)
        return self._answer()

    async def begin(self) -> StepResult:
        self.entered.append("begin")
        return self._answer()


@pytest.mark.parametrize(
    ("new", "following", "entered"),
    [
        (True, ["end"], ["begin"]),
        (True, ["probe"], ["begin"]),
        # Somebody has touched it, or it may not be sent yet.
        (True, ["reload", "end"], ["begin", "reserve"]),
        (True, ["reload", "dispatch", "end"], ["begin", "reserve", "dispatch 7 3"]),
        # A later generation, or a later turn of the first, knows no more than what it reads.
        (False, ["dispatch", "end"], ["reserve", "dispatch 7 3"]),
        (False, ["wait"], ["reserve"]),
        (False, ["probe"], ["reserve"]),
    ],
)
async def test_the_first_step_sends_at_once_what_is_to_be_sent(
    new: bool, following: list[str], entered: list[str]
) -> None:
    parts = Answers(*following)
    assert (await opened(parts, new=new))["next"] == following[-1]
    assert parts.entered == entered
