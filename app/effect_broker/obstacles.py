"""What stood in the way when a worker last tried: its code in words, and what to do about it.

An attempt that never left, or a look-up that could not be asked, has a code of its adapter's. Some
of them go away by themselves, and most are for somebody to mend before the attempts are used up.
Secrets are told by their names, as the pinned contract has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from effect_broker.protocol.ports import AttemptRow
from effect_broker.reasons import Words
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome
from effect_contracts.mcp_settings import McpProgram, McpSettings
from effect_contracts.secret_references import sending_secrets

_REACH: Final = (
    "Check the address in the contract, the name service and the network of the workers."
)
_TLS: Final = "Check the target's certificate, and the authorities that the workers trust."
_PROGRAMS: Final = (
    "Correct the list of programs that EFFECT_BROKER_MCP_PROGRAMS names where workers run."
)
_CONTRACT: Final = (
    "Correct the contract, apply it as a new version, and submit under a new operation key: this "
    "effect stays with the version that it was submitted under."
)

_WORDS: Final = {
    "dns_failed": Words("The target's host name could not be looked up.", _REACH),
    "dns_timeout": Words("The name service did not answer in time.", _REACH),
    "connect_refused": Words("Nothing listens at the target's address.", _REACH),
    "connect_failed": Words("No connection to the target could be made.", _REACH),
    "connect_timeout": Words("The target did not take the connection in time.", _REACH),
    "tls_failed": Words("No TLS session with the target could be made.", _TLS),
    "tls_timeout": Words("The target did not finish the TLS handshake in time.", _TLS),
    "programs_missing": Words("The worker had no list of programs that it may start.", _PROGRAMS),
    "programs_invalid": Words("The worker's list of programs cannot be read.", _PROGRAMS),
    "program_not_allowed": Words("The worker's list lacks the contract's program.", _PROGRAMS),
    "wire_invalid": Words(
        "The stored request cannot be read as the contract's adapter writes it.",
        "See that workers and API run the same release.",
    ),
    "budget_spent": Words(
        "The attempt's time was over before anything was sent.",
        "See that the workers are not overloaded; a longer attempt_deadline_seconds helps the "
        "next version of the contract.",
    ),
    "unexpected_reply": Words(
        "The server answered something else than its protocol asks, before the message was sent.",
        "See that the contract names the right host and port.",
    ),
}
_EXTRA: Final = "extra_missing_"


def obstacle(
    document: ContractDocument, attempts: Sequence[AttemptRow], looked: str | None
) -> Words | None:
    """Return what keeps an effect from being sent, or its target from being asked; None if nothing.

    `looked` is the code of the latest look-up, None where that is not known or an attempt came
    after it.
    """
    code = looked
    if attempts:
        last = attempts[-1].fact
        if last.outcome is Outcome.NOT_SENT:
            code = last.code
    return None if code is None else _words(document, code)


def _words(document: ContractDocument, code: str) -> Words | None:
    if code in ("secret_unavailable", "secret_invalid"):
        return _secret(document, missing=code == "secret_unavailable")
    if code.startswith(_EXTRA):
        extra = code.removeprefix(_EXTRA)
        return Words(
            "The worker that tried lacks the packages of this kind of target.",
            f"Install them where workers run: pip install 'effect-broker[{extra}]'.",
        )
    return _WORDS.get(code)


def _secret(document: ContractDocument, *, missing: bool) -> Words:
    names, settings = sending_secrets(document), document.adapter
    what = f"the secret {names[0]}" if len(names) == 1 else f"one of the secrets {', '.join(names)}"
    remedy = " ".join(_ways(names))
    if isinstance(settings, McpSettings) and isinstance(settings.server, McpProgram):
        what = f"a secret of the program {settings.server.program}"
        remedy = f"{_PROGRAMS} It names the secret; set it there too, and start the workers again."
    if missing:
        return Words(f"The worker that tried could not read {what}.", remedy)
    text = f"The worker that tried could not use {what}: it holds what no header may hold."
    return Words(text, remedy)


def _ways(names: Sequence[str]) -> Iterator[str]:
    variables = [name.removeprefix("env:") for name in names if name.startswith("env:")]
    if variables:
        yield (
            f"Set {', '.join(variables)} where workers run (or before `effect-broker up`) and "
            "start them again; only names that begin with EFFECT_BROKER_SECRET_PREFIX "
            "(EFFECT_BROKER_SECRET_ by default) are read."
        )
    files = [name.removeprefix("file:") for name in names if name.startswith("file:")]
    if files:
        yield (
            f"Put the secret into {', '.join(files)} where workers run, below their "
            "EFFECT_BROKER_SECRET_DIRECTORY."
        )
