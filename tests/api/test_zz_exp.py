"""Experiments."""
import asyncio, json
import httpx, pytest
from pathlib import Path
from api.deployment import Deployment, charge, entry, in_doubt, versioned, CHARGE, LEDGER
from api.test_resolve import statement
from api.test_account_of_persons import _posted, _pruned, _verified, _state, _settle_compensations
from api.test_oversight import approving, two_persons, second, _waiting, _yes
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.tenants import Tenants

async def test_gets_after_prune(api, operator, deployment):
    deployment.make_ledger()
    done = await _posted(api, deployment, "done")
    await _pruned(deployment)
    p = f"/v1/effects/{done}"
    for method, path, body in (
        ("GET", p, None), ("GET", p+"/history", None), ("GET", p+"/history?at_sequence=1", None), ("GET", p+"/receipt", None),
        ("GET", "/v1/effects", None), ("GET", "/v1/unresolved", None), ("GET", p+"/proposals", None),
        ("POST", p+"/reconcile", None), ("POST", p+"/cancel", None),
        ("POST", p+"/resolve", statement()), ("POST", p+"/acknowledge", {"alert": "duplicate_detected", "reason": "x"}),
        ("POST", p+"/approve", {"decision_id":"d","request_hash":"0"*64,"reason":"x"}),
        ("GET", "/v1/decisions/%00", None), ("GET", "/v1/decisions/"+"x"*3000, None), ("GET", "/v1/decisions/%ff", None), ("GET","/v1/decisions/a%0Ab",None),
        ("GET", "/v1/effects?operation_prefix=%00", None), ("GET", "/v1/unresolved?tool=%00", None), ("GET","/v1/unresolved?operation_prefix=~~~", None),
        ("POST", "/v1/holds/x/lift", {"reason":"x"}), ("GET","/v1/holds?limit=1",None),
    ):
        r = await operator.request(method, path, json=body) if body is not None else await operator.request(method, path)
        print(method, path[:60], r.status_code, r.text[:300].replace("\n"," "))

async def test_poison(api, operator, deployment):
    e = await in_doubt(api, deployment)
    p=f"/v1/effects/{e}"
    for poison in ("\x00", "\x1b[31mred", "\u202eevil", "\ud800", "a\nb", "x"*3000):
        for name, path, body in (
            ("resolve", p+"/resolve", statement(reason=poison, decision_id="r")),
            ("ack", p+"/acknowledge", {"alert":"duplicate_detected","reason":poison}),
            ("approve", p+"/approve", {"decision_id":"d","request_hash":"0"*64,"reason":poison}),
            ("hold", "/v1/holds", {"reason":poison, "tool": "demo.charge"}),
            ("holdtool", "/v1/holds", {"reason":"x", "tool": poison}),
            ("batch", "/v1/decisions", {"decision_id":"b","group":{"tool":poison},"conclusion":"committed","reason":poison,"causes":[poison],"evidence":[{"kind":"export","observed_at":"2025-11-29T12:05:00Z","reference":poison}],"effects":[{"effect_id":e,"expected_version":1}]}),
        ):
            r = await operator.post(path, content=json.dumps(body), headers={"content-type":"application/json"})
            print(repr(poison[:10]), name, r.status_code, r.text[:160].replace("\n"," "))

async def test_account(api, operator, second, approving, deployment, tmp_path, admin_pool):
    a = await _waiting(api, deployment)
    r = await operator.post(f"/v1/effects/{a['effect_id']}/approve", json=_yes(a)); print(r.status_code)
    print(await _verified(deployment, tmp_path))
    # approve renew
    r = await operator.post(f"/v1/effects/{a['effect_id']}/approve", json=_yes(a, decision_id="again")); print(r.status_code)
    print("renewed", await _verified(deployment, tmp_path))
    await deployment.settle(a["effect_id"])
    print("sent", await _verified(deployment, tmp_path))
    b = await _waiting(api, deployment, key="other")
    r = await operator.post(f"/v1/effects/{b['effect_id']}/approve", json=_yes(b)); print("replay other decision", r.status_code, r.text[:100])
    r = await operator.post(f"/v1/effects/{b['effect_id']}/deny", json=_yes(b, decision_id="no")); print(r.status_code)
    print("denied", await _verified(deployment, tmp_path))
    c = await _waiting(api, deployment, key="third")
    r = await operator.post(f"/v1/effects/{c['effect_id']}/approve", json=_yes(c, decision_id="c1"))
    r = await operator.post(f"/v1/effects/{c['effect_id']}/deny", json=_yes(c, decision_id="c2")); print(r.status_code)
    print("approved then denied", await _verified(deployment, tmp_path))
    # forge approved_at as API role
