"""A step of a caller's own DBOS workflow submits, is killed, runs again, and one effect results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from effect_broker.proof.contracts import tuned
from effect_contracts.document import ContractDocument
from hosting.scenes import MODES, Scene
from sdk.conftest import Access
from sdk.test_examples import PAGE

# The program of the page, in an application of its own. The first time it is killed after its
# submit and before DBOS has recorded that the step has ended; the second time DBOS takes it up.
DRIVER = """
import os, signal, sys
from dbos import SetWorkflowID

database, first = sys.argv[1:]
DBOS(config={"name": "shop", "system_database_url": database, "console_log_level": "ERROR"})
DBOS.launch()
if first == "first":
    submitted = broker.submit
    def dying(*arguments, **named):
        submitted(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    broker.submit = dying
    with SetWorkflowID("order-47"):
        place_order("dbos")
else:
    print(DBOS.retrieve_workflow("order-47").get_result())
    DBOS.destroy()
    broker.close()
"""


def test_a_step_that_runs_again_submits_the_same_effect(
    scene: Scene, access: Access, tmp_path: Path
) -> None:
    scene.ensure_workers(1)
    scene.broker.target.client.set_mode("from_dbos", MODES["idempotent"])
    document = tuned("demo-charge-idempotent", scene.broker.target.url, "from_dbos")
    content = json.loads(document.canonical()) | {"tool": "demo.charge_in_dbos"}
    scene.broker.apply(ContractDocument.parse_yaml(json.dumps(content)))
    (shown,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert shown.count('"demo.charge"') == 1
    program = tmp_path / "shop.py"
    program.write_text(shown.replace('"demo.charge"', '"demo.charge_in_dbos"') + DRIVER)

    def run(which: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(program), f"sqlite:///{tmp_path / 'dbos.sqlite'}", which],
            env={**os.environ, **access.environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    assert run("first").returncode == -signal.SIGKILL
    again = run("again")
    assert again.returncode == 0, again.stderr
    ledger = scene.ledger("from_dbos")
    assert ledger.effects == 1
    assert again.stdout.split()[-1] == ledger.effect_rows[0].object_id
    keys = "SELECT operation_key FROM effect_broker.effect_intents WHERE tool = %s"
    assert [row["operation_key"] for row in scene.rows(keys, "demo.charge_in_dbos")] == [
        "dbos:workflow:order-47:charge"
    ]
