"""The last gate before a tools/call leaves: one call, within its budget, and what is known of it.

Both transports put every byte of a call through `open`: the one over pipes before it writes the
line, the one over HTTP before the first byte of the request's head. What was not let through has
not left, and that alone makes an attempt `not_sent`; the class of an exception never counts.
"""

from __future__ import annotations

import math

from effect_adapters.base import Budget, Reach


class CallRefused(Exception):
    """This call may not leave; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Gate:
    """Lets one call through, once.

    Attributes:
        passed: the call may have left.
        refusal: why something was not let through; the first reason stays.
        trouble: what a transport knows of the end that no exception says.
        status: of the HTTP answer to the call, if one came.
    """

    def __init__(self, budget: Budget, reach: Reach) -> None:
        self._budget = budget
        self._reach = reach
        self.passed = False
        self.refusal: str | None = None
        self.trouble: str | None = None
        self.status: int | None = None

    def open(self) -> None:
        """Let the call through.

        Raises:
            CallRefused: `call_repeated`, or `budget_spent`.
        """
        self.check_first()
        self._reach("before_socket_write")
        if self.spent:
            self._refuse("budget_spent")
        self.passed = True
        self._reach("after_last_gate")

    def check_first(self) -> None:
        """Refuse a call that would be a second one (a redirect, a library that sends again).

        Raises:
            CallRefused: `call_repeated`.
        """
        if self.passed:
            self._refuse("call_repeated")

    @property
    def spent(self) -> bool:
        """Whether the time of the exchange is over, so that nothing may leave any more."""
        return self._budget.remaining_seconds() <= 0

    def _refuse(self, code: str) -> None:
        self.refusal = self.refusal or code
        raise CallRefused(code)


class StandingGate(Gate):
    """Of a line that stays open, for what may be sent any number of times."""

    def __init__(self) -> None:
        super().__init__(Budget(math.inf, lambda: 0.0), lambda _: None)

    def check_first(self) -> None:
        """Refuse nothing."""
