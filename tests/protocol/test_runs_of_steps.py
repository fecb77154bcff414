"""The loop of a run, by its numbers: how many steps, and after which waits."""

from __future__ import annotations

import pytest

from effect_broker.protocol.run import StepResult, drive

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

    async def begin(self) -> StepResult:
        self.entered.append("begin")
        return self._said

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


@pytest.mark.parametrize(
    ("new", "following", "entered"),
    [
        (True, ["dispatch", "end"], ["begin", "dispatch 7 3"]),
        # Somebody has touched it, or it may not be sent yet.
        (True, ["dispatch", "reload", "end"], ["begin", "dispatch 7 3", "reserve"]),
        # A later generation knows no more than what it reads.
        (False, ["dispatch", "end"], ["reserve", "dispatch 7 3"]),
    ],
)
async def test_only_the_run_of_a_submit_begins_without_a_read(
    new: bool, following: list[str], entered: list[str]
) -> None:
    steps = Turns(*following)
    await drive(steps, new=new)
    assert steps.entered == entered


class Turns(Steps):
    """Steps that say in turn what is next."""

    def __init__(self, *following: str) -> None:
        super().__init__("end")
        self._following = list(following)

    def _answer(self) -> StepResult:
        return {**self._said, "next": self._following.pop(0)}

    async def begin(self) -> StepResult:
        await super().begin()
        return self._answer()

    async def reserve(self) -> StepResult:
        await super().reserve()
        return self._answer()

    async def dispatch(self, version: int, ordinal: int) -> StepResult:
        await super().dispatch(version, ordinal)
        return self._answer()
