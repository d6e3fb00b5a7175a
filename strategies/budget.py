"""Hard limits of money: what a call may cost at worst is set aside before it is sent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from playcall.strategies.call import CallFailed, Failure
from playcall.strategies.errors import Misuse
from playcall.strategies.recording import NANO
from playcall.strategies.signal import Signal


@dataclass
class Account:
    """Money in nano-dollars that some calls share."""

    what: str
    limit: int | None = None  # None is without limit
    spent: int = 0
    held: int = 0  # for calls in flight

    def refuses(self, worst: int) -> bool:
        """Whether it cannot pay this, whatever becomes of the calls in flight."""
        return self.limit is not None and self.spent + worst > self.limit

    def full(self, worst: int) -> bool:
        """Whether it cannot pay this now."""
        return self.limit is not None and self.spent + self.held + worst > self.limit


@dataclass
class Hold:
    """Money set aside for one call."""

    worst: int
    accounts: tuple[Account, ...]


class Budget:
    """Limits in USD: `task` for each run, `session` for all runs that share this Budget, `arms` for each arm by name.

    A call is sent only if its worst case fits; where calls in flight may yet leave room it waits for them, else it
    fails with the reason `budget`. Only what a provider bills beyond its own token limits can pass a limit.
    """

    def __init__(
        self, *, task: float | None = None, session: float | None = None, arms: Mapping[str, float] | None = None
    ) -> None:
        self.task = _nano("task", task)
        self.session = Account("session", _nano("session", session))
        self.arms = {arm: Account(f"arm {arm!r}", _nano(f"arm {arm!r}", usd)) for arm, usd in (arms or {}).items()}
        self._lock = threading.Lock()
        self._settled: list[Signal] = []

    @property
    def spent_usd(self) -> float:
        """What the session has spent."""
        return self.session.spent / NANO

    def limits(self, arm: str) -> bool:
        """Whether any limit bears on this arm."""
        return self.task is not None or self.session.limit is not None or arm in self.arms

    async def hold(self, run: Account, arm: str, worst: int) -> Hold:
        """Set the worst case of a call aside; raises CallFailed(BUDGET) where it can never fit."""
        if not self.limits(arm):
            return Hold(0, (run, self.session))
        run.limit = self.task
        accounts = (run, self.session, *([self.arms[arm]] if arm in self.arms else []))
        while True:
            with self._lock:
                if short := next((a for a in accounts if a.refuses(worst)), None):
                    raise CallFailed(Failure.BUDGET, _short(short, worst))
                if not any(a.full(worst) for a in accounts):
                    for account in accounts:
                        account.held += worst
                    return Hold(worst, accounts)
                self._settled.append(settled := Signal())
            await settled.wait()

    def settle(self, hold: Hold, price: int) -> None:
        """Replace what was set aside by what is owed."""
        with self._lock:
            for account in hold.accounts:
                account.held -= hold.worst
                account.spent += price
            waiting, self._settled = self._settled, []
        for signal in waiting:
            signal.set()


def _short(account: Account, worst: int) -> str:
    left = ((account.limit or 0) - account.spent) / NANO
    return f"this call may cost ${worst / NANO:.6g}, and the {account.what} has ${left:.6g} left"


def _nano(what: str, usd: float | None) -> int | None:
    if usd is None:
        return None
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not (isfinite(usd) and usd >= 0):
        raise Misuse(f"budget of {what}: {usd!r}; give USD, zero or more.")
    return round(usd * NANO)
