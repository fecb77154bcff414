"""What is mutated, and which tests have to notice.

Every module of the core is mutated but those of `LEFT_OUT`. Its tests are those that state its
promises without a network and without a database: they answer in seconds, and a mutant that only
a whole broker would notice counts as survived. A module has them by its name, or in `SUITES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Package -> its source root, as in the checkout.
ROOTS: Final = {"effect_contracts": "contracts", "effect_broker.protocol": "app"}

_CONTRACTS: Final = "tests/contracts/"
_PROTOCOL: Final = "tests/protocol/"
_ADAPTERS: Final = "tests/adapters/"
_TRACE: Final = "tests/trace_check/"

# What every value of the core keeps: frozen, and without members that nobody declared.
_VALUES: Final = f"{_CONTRACTS}test_core_values.py"
_DECIDE: Final = (
    f"{_CONTRACTS}test_decide_*.py",
    f"{_CONTRACTS}test_election.py",
    f"{_CONTRACTS}test_pacing.py",
    f"{_CONTRACTS}test_core_*.py",
)
_DOCUMENT: Final = (f"{_CONTRACTS}test_document*.py", f"{_CONTRACTS}test_core_*.py")
_ERRORS: Final = (f"{_CONTRACTS}test_errors*.py", _VALUES)
_HTTP: Final = tuple(
    f"{_ADAPTERS}test_{name}.py"
    for name in ("classify", "rendering", "probing", "demo_contracts", "conformance")
)
# All but `test_postgres.py`: the steps are the same over the store in memory, and quicker.
_STEPS: Final = (f"{_PROTOCOL}test_[!p]*.py",)
_CHECK: Final = (f"{_TRACE}test_rules.py",)
# Holds the published schema: every member of a contract's sections with its bounds and default.
_FORM: Final = f"{_CONTRACTS}test_document.py"
_CLIENTS: Final = (f"{_CONTRACTS}test_client_rules*.py", _FORM)
_CALLERS: Final = (f"{_CONTRACTS}test_caller_section.py", _FORM)
_MCP: Final = (f"{_CONTRACTS}test_mcp_section*.py", _FORM)

# Module -> the files of its tests (patterns from the checkout's top), where the name is not enough.
SUITES: Final[dict[str, tuple[str, ...]]] = {
    "effect_broker.protocol.election": (
        f"{_PROTOCOL}test_elections*.py",
        f"{_PROTOCOL}test_core_*.py",
    ),
    "effect_contracts.audit": (f"{_CONTRACTS}test_audit*.py", f"{_CONTRACTS}test_core_*.py"),
    "effect_contracts.aws_settings": _CLIENTS,
    "effect_contracts.backoff": (f"{_CONTRACTS}test_backoff*.py", f"{_CONTRACTS}test_core_*.py"),
    "effect_contracts.body_template": (f"{_CONTRACTS}test_body_template*.py", _VALUES),
    "effect_contracts.bounded_schema": (f"{_CONTRACTS}test_bounded_schema*.py", _VALUES),
    "effect_contracts.caller_rules": _CALLERS,
    "effect_contracts.caller_settings": _CALLERS,
    "effect_contracts.canonical": (
        f"{_CONTRACTS}test_canonical*.py",
        f"{_CONTRACTS}test_core_*.py",
    ),
    "effect_contracts.certificate_settings": (f"{_CONTRACTS}test_certificate_section*.py", _FORM),
    "effect_contracts.certificates": (f"{_CONTRACTS}test_certificates*.py", _VALUES),
    "effect_contracts.certified": (
        f"{_CONTRACTS}test_certified*.py",
        f"{_CONTRACTS}test_decide_certificate.py",
        _VALUES,
    ),
    "effect_contracts.client_rules": _CLIENTS,
    "effect_contracts.decide": _DECIDE,
    "effect_contracts.decision": (f"{_CONTRACTS}test_decide_table.py", _VALUES),
    "effect_contracts.document": (*_DOCUMENT, *_HTTP),
    "effect_contracts.document_rules": _DOCUMENT,
    "effect_contracts.document_text": _DOCUMENT,
    "effect_contracts.errors": _ERRORS,
    "effect_contracts.errors.access": _ERRORS,
    "effect_contracts.errors.base": _ERRORS,
    "effect_contracts.errors.broker": _ERRORS,
    "effect_contracts.errors.conflict": _ERRORS,
    "effect_contracts.errors.contract": _ERRORS,
    "effect_contracts.errors.request": _ERRORS,
    "effect_contracts.event_stream": (f"{_CONTRACTS}test_event_stream*.py", _VALUES),
    "effect_contracts.events": (f"{_CONTRACTS}test_events*.py", _VALUES),
    "effect_contracts.expressions": (f"{_CONTRACTS}test_expressions*.py", *_DOCUMENT),
    "effect_contracts.fact_digests": (f"{_CONTRACTS}test_fact_digests*.py", _VALUES),
    "effect_contracts.facts": (*_DECIDE, f"{_PROTOCOL}test_facts*.py"),
    "effect_contracts.http_rules": (*_DOCUMENT, *_HTTP),
    "effect_contracts.http_settings": (*_DOCUMENT, *_HTTP),
    "effect_contracts.keys": (f"{_CONTRACTS}test_keys*.py", f"{_CONTRACTS}test_core_*.py"),
    "effect_contracts.life": (f"{_CONTRACTS}test_life*.py", f"{_CONTRACTS}test_core_*.py"),
    "effect_contracts.limit_settings": (
        f"{_CONTRACTS}test_limits_section.py",
        _FORM,
    ),
    "effect_contracts.mcp_rules": _MCP,
    "effect_contracts.mcp_settings": _MCP,
    "effect_contracts.nats_settings": _CLIENTS,
    "effect_contracts.operations": _DECIDE,
    "effect_contracts.pacing": (
        f"{_CONTRACTS}test_pacing*.py",
        f"{_CONTRACTS}test_limits_section.py",
        _VALUES,
    ),
    "effect_contracts.patterns": (f"{_CONTRACTS}test_patterns*.py", _VALUES),
    "effect_contracts.pointers": (f"{_CONTRACTS}test_pointers.py", _VALUES),
    "effect_contracts.receipts": (f"{_CONTRACTS}test_core_*.py", *_STEPS, *_CHECK),
    "effect_contracts.retention": (f"{_CONTRACTS}test_retention.py", _VALUES),
    "effect_contracts.section": (f"{_CONTRACTS}test_section*.py", _VALUES),
    "effect_contracts.smtp_settings": _CLIENTS,
    "effect_contracts.turn": (f"{_CONTRACTS}test_pacing.py",),
    "effect_contracts.trace.chain": (f"{_TRACE}test_chain*.py", _VALUES),
    "effect_contracts.trace.check": (
        f"{_TRACE}test_check*.py",
        f"{_TRACE}test_removed*.py",
        f"{_TRACE}test_replay*.py",
        _VALUES,
    ),
    "effect_contracts.trace.findings": (
        f"{_TRACE}test_findings.py",
        f"{_TRACE}test_log.py",
        _VALUES,
    ),
    "effect_contracts.trace.guards": (f"{_TRACE}test_guards*.py", _VALUES),
    "effect_contracts.trace.kinds": (f"{_TRACE}test_kinds.py", _VALUES),
    "effect_contracts.trace.log": (f"{_TRACE}test_log.py", _VALUES),
    "effect_contracts.trace.receipt": (f"{_TRACE}test_receipt*.py", _VALUES),
    "effect_contracts.trace.removed": (f"{_TRACE}test_removed*.py", _VALUES),
    "effect_contracts.trace.replay": (
        f"{_TRACE}test_replay*.py",
        f"{_TRACE}test_certificates.py",
        f"{_TRACE}test_limits.py",
        *_CHECK,
        _VALUES,
    ),
    "effect_contracts.trace.standing": (f"{_TRACE}test_standing*.py", _VALUES),
    "effect_contracts.trace.timeline": (f"{_TRACE}test_timeline*.py", _VALUES),
    "effect_contracts.webhook_sending": (f"{_CONTRACTS}test_event_stream*.py", _VALUES),
    "effect_contracts.webhook_urls": (
        f"{_CONTRACTS}test_webhook_urls*.py",
        f"{_CONTRACTS}test_event_stream.py",
        _VALUES,
    ),
}

LEFT_OUT: Final[dict[str, str]] = {
    "effect_contracts": "an empty package",
    "effect_contracts.catalog": "finds files; a wheel and a checkout are compared by other tests",
    "effect_contracts.problem_codes": "constants: a code and its status",
    "effect_contracts.reasons": "constants: a reason and its sentence",
    "effect_contracts.trace": "an empty package",
    "effect_broker.protocol": "an empty package",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A module under mutation.

    Attributes:
        name: its dotted name.
        path: its file, from the checkout's top.
        suite: patterns of the files with its tests, from the checkout's top.
    """

    name: str
    path: str
    suite: tuple[str, ...]

    def tests(self, checkout: Path) -> list[str]:
        """Return the files of the suite that are there, each once, in the order of the suite."""
        found = (
            str(path.relative_to(checkout))
            for pattern in self.suite
            for path in sorted(checkout.glob(pattern))
        )
        return list(dict.fromkeys(found))


def targets(checkout: Path) -> list[Target]:
    """Return every module under mutation that the checkout has, sorted by name."""
    return [
        Target(name, path, SUITES.get(name) or suite(name))
        for name, path in modules(checkout).items()
        if name not in LEFT_OUT
    ]


def suite(module: str) -> tuple[str, ...]:
    """Return where the tests of a module are that has no entry of its own in `SUITES`."""
    package, _, name = module.rpartition(".")
    # A module of several words shares its tests with its kin: `webhook_rules`, `webhook_settings`.
    topic = name.partition("_")[0]
    by_name = tuple(f"{folder}test_*{topic}*.py" for folder in (_CONTRACTS, _PROTOCOL, _ADAPTERS))
    if package == "effect_broker.protocol":
        return (*by_name, *_STEPS)
    if package == "effect_contracts.trace":
        return _CHECK
    return (*by_name, _VALUES)


def modules(checkout: Path) -> dict[str, str]:
    """Return every module of the core by its dotted name, with its file from the top."""
    found: dict[str, str] = {}
    for package, root in ROOTS.items():
        folder = checkout / root / Path(*package.split("."))
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(checkout / root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = str(path.relative_to(checkout))
    return dict(sorted(found.items()))


def named(asked: str, among: list[Target]) -> Target:
    """Return the module of that name; the last parts of the name are enough if they are unique.

    Raises:
        ValueError: no module has that name, or several have; the message names them.
    """
    found = [t for t in among if t.name == asked] or [
        t for t in among if t.name.endswith("." + asked)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(target.name for target in found or among)
    raise ValueError(f"{asked}: {'which one of' if found else 'no module; there are'} {known}")
