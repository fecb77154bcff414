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

# `{who}` and `{where}` are filled in for whoever has tried: a worker, or a command of this moment.
_WORKER: Final = {"who": "The worker that tried", "where": "where workers run"}
_COMMAND: Final = {"who": "This command", "where": "for this command"}

_REACH: Final = "Check the address in the contract, and the name service and network {where}."
_TLS: Final = "Check the target's certificate, and the authorities that are trusted {where}."
_PROGRAMS: Final = "Correct the list of programs that EFFECT_BROKER_MCP_PROGRAMS names {where}."

_WORDS: Final = {
    "dns_failed": Words("The target's host name could not be looked up.", _REACH),
    "dns_timeout": Words("The name service did not answer in time.", _REACH),
    "connect_refused": Words("Nothing listens at the target's address.", _REACH),
    "connect_failed": Words("No connection to the target could be made.", _REACH),
    "connect_timeout": Words("The target did not take the connection in time.", _REACH),
    "tls_failed": Words("No TLS session with the target could be made.", _TLS),
    "tls_timeout": Words("The target did not finish the TLS handshake in time.", _TLS),
    "programs_missing": Words("{who} had no list of programs that it may start.", _PROGRAMS),
    "programs_invalid": Words("{who} could not read its list of programs.", _PROGRAMS),
    "program_not_allowed": Words("{who} has a list of programs without the contract's.", _PROGRAMS),
    "program_not_started": Words(
        "The contract's program could not be started.",
        "See that its command exists {where} and may be run.",
    ),
    "program_ended": Words(
        "The contract's program ended before it was asked for anything.",
        "Start its command by hand {where}, and see what it says.",
    ),
    "server_unfit": Words(
        "The server lacks the tool, or what the contract needs of it.",
        "Compare the server's list of tools with the contract.",
    ),
    "tls_missing": Words("The server offers no TLS, and the contract asks for it.", _TLS),
    "stream_missing": Words(
        "The server has no stream for the contract's subject.", "Make the stream."
    ),
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
_OURS: Final = frozenset(
    {"secret_unavailable", "secret_invalid", "programs_missing", "programs_invalid"}
    | {"program_not_allowed", "program_not_started"}
)
_EXTRA: Final = "extra_missing_"
_INSTALL: Final = "Install them {where}: pip install 'effect-broker[{extra}]'."


def obstacle(
    document: ContractDocument, attempts: Sequence[AttemptRow], looked: str | None
) -> Words | None:
    """Return what keeps an effect from being sent, or its target from being asked; None if nothing.

    `looked` is the code of the latest look-up, None where that is not known or an attempt came
    after it.
    """
    last = attempts[-1].fact if attempts else None
    if looked is None and last is not None and last.outcome is Outcome.NOT_SENT and last.code:
        known = words_of_code(document, last.code)
        return known or Words(f"The last attempt was not sent: {last.code}.")
    return None if looked is None else words_of_code(document, looked)


def is_ours(code: str) -> bool:
    """Whether the sender itself lacks something: a secret, a package, a program."""
    return code in _OURS or code.startswith(_EXTRA)


def words_of_code(document: ContractDocument, code: str, *, here: bool = False) -> Words | None:
    """Return what the code of an attempt or a look-up that was not sent means; None of another.

    Args:
        here: this process has tried, and no worker.
    """
    names = _COMMAND if here else _WORKER
    if code in ("secret_unavailable", "secret_invalid"):
        words = _secret(document, missing=code == "secret_unavailable", here=here)
    elif code.startswith(_EXTRA):
        words = Words("{who} lacks the packages of this kind of target.", _INSTALL)
        names = names | {"extra": code.removeprefix(_EXTRA)}
    elif code in _WORDS:
        words = _WORDS[code]
    else:
        return None
    return Words(words.meaning.format_map(names), (words.remedy or "").format_map(names))


def _secret(document: ContractDocument, *, missing: bool, here: bool) -> Words:
    names, settings = sending_secrets(document), document.adapter
    what = f"the secret {names[0]}" if len(names) == 1 else f"one of the secrets {', '.join(names)}"
    remedy = " ".join(_ways(names, here))
    if isinstance(settings, McpSettings) and isinstance(settings.server, McpProgram):
        what = f"a secret of the program {settings.server.program}"
        remedy = f"{_PROGRAMS} It names the secret, which has to be set there as well."
    if missing:
        return Words(f"{{who}} could not read {what}.", remedy)
    return Words(f"{{who}} could not use {what}: it holds what no header may hold.", remedy)


def _ways(names: Sequence[str], here: bool) -> Iterator[str]:
    variables = [name.removeprefix("env:") for name in names if name.startswith("env:")]
    if variables:
        again = "" if here else " (or before `effect-broker up`) and start them again"
        yield (
            f"Set {', '.join(variables)} {{where}}{again}; only names that begin with "
            "EFFECT_BROKER_SECRET_PREFIX (EFFECT_BROKER_SECRET_ by default) are read."
        )
    files = [name.removeprefix("file:") for name in names if name.startswith("file:")]
    if files:
        yield (
            f"Put the secret into {', '.join(files)} {{where}}, below the directory that "
            "EFFECT_BROKER_SECRET_DIRECTORY names."
        )
