"""The real models, asked for real; collected only where a key for them is in the environment.

EFFECT_BROKER_LIVE_OPENAI_KEY with OPENAI_MODEL, EFFECT_BROKER_LIVE_GROK_KEY with XAI_MODEL.
"""

from __future__ import annotations

import os

import pytest

from demo_agent.conftest import LIVE
from effect_broker.proof.agent.demo import Choice, run_agent
from effect_broker.proof.agent.models import ENDPOINTS, access_from
from hosting.scenes import Scene

# One demo for each broker: the first key decides.
_VARIABLE = next((name for name in LIVE if os.environ.get(name)), LIVE[0])
_PROVIDER = {LIVE[0]: "openai", LIVE[1]: "grok"}[_VARIABLE]


@pytest.mark.timeout(600)
def test_a_real_model_that_is_killed_in_the_middle_makes_each_effect_once(scene: Scene) -> None:
    scene.ensure_workers(1)
    key = ENDPOINTS[_PROVIDER].key_variable
    environment = dict(os.environ) | {key: os.environ[_VARIABLE]}
    access = access_from(_PROVIDER, None, environment)
    choice = Choice(_PROVIDER, access.model, environment={key: access.api_key})
    result = run_agent(scene.broker, choice, lambda _: None)
    assert result.passed, result
