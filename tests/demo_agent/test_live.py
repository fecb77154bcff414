"""The real models, asked for real: each where a key for it is in the environment.

EFFECT_BROKER_LIVE_OPENAI_KEY with OPENAI_MODEL, EFFECT_BROKER_LIVE_GROK_KEY with XAI_MODEL. With
both, both are asked; without any, nothing here is collected.
"""

from __future__ import annotations

import os

import pytest

from demo_agent.conftest import LIVE, asked_live
from effect_broker.proof.agent.demo import Choice, run_agent
from effect_broker.proof.agent.models import ENDPOINTS, access_from
from hosting.scenes import Scene


@pytest.mark.timeout(600)
@pytest.mark.parametrize("provider", asked_live(os.environ))
def test_a_real_model_that_is_killed_in_the_middle_makes_each_effect_once(
    own_scene: Scene, provider: str
) -> None:
    key = ENDPOINTS[provider].key_variable
    environment = dict(os.environ) | {key: os.environ[LIVE[provider]]}
    access = access_from(provider, None, environment)
    choice = Choice(provider, access.model, environment={key: access.api_key})
    result = run_agent(own_scene.broker, choice, lambda _: None)
    assert result.passed, result
