"""What a ledger says was spent, and on what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from playcall.strategies.errors import Misuse
from playcall.strategies.ledger import Ledger
from playcall.strategies.store import Store, calls

By = Literal["arm", "strategy", "role", "day"]
UNPRICED = "unknown"  # price source of calls that were taken as free since nobody knew their price
CENTILES = 50, 95, 99


@dataclass(frozen=True)
class SummaryRow:
    """The calls of one arm, strategy, role or day (UTC). Money is in nano-dollars; seconds are those of answered calls
    that no cache answered, percentiles by nearest rank, None where there are none.
    """

    name: str
    calls: int
    failed: int
    cancelled: int
    cached: int
    spent: int  # on answers
    failed_spent: int
    cancelled_spent: int
    saved: int  # by the cache
    input_tokens: int
    output_tokens: int
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    share: float  # of the money of all rows, 0 to 1
    about: bool  # some prices are estimates
    at_least: bool  # some prices are unknown, and count as nothing

    @property
    def total(self) -> int:
        """All that was spent."""
        return self.spent + self.failed_spent + self.cancelled_spent


def summary(ledger: Ledger | str | Path, by: By = "arm") -> list[SummaryRow]:
    """Spending by arm, strategy, role or day, dearest first, days in order. A Ledger is flushed before it is read."""
    import sqlalchemy as sa

    if by not in get_args(By):
        raise Misuse(f"by={by!r}; write {', '.join(get_args(By))}.")
    if isinstance(ledger, Ledger):
        ledger.flush_sync()
        store = ledger.store
    else:
        store = Store(ledger)
        store.check()
    c: Any = calls().c
    name = sa.func.substr(c.began, 1, 10) if by == "day" else c[by]
    failed, answered = sa.and_(c.error != "", ~c.cancelled), sa.and_(c.error == "", ~c.cancelled)

    def total(x: Any, where: Any) -> Any:
        return sa.func.coalesce(sa.func.sum(sa.case((where, x), else_=0)), 0)

    sums = sa.select(
        name,
        sa.func.count(),
        *(total(1, where) for where in (failed, c.cancelled, c.cached)),
        *(total(c.price_nano, where) for where in (answered, failed, c.cancelled)),
        *(sa.func.coalesce(sa.func.sum(x), 0) for x in (c.saved_nano, c.input_tokens, c.output_tokens)),
        sa.func.avg(sa.case((sa.and_(answered, ~c.cached), c.seconds))),
        *(total(1, where) for where in (c.estimated, c.price_source == UNPRICED)),
    ).group_by(name)
    rank = sa.func.row_number().over(partition_by=name, order_by=c.seconds)
    many = sa.func.count().over(partition_by=name)
    ranked = sa.select(name.label("name"), c.seconds, rank.label("rank"), many.label("many"))
    r = ranked.where(answered, ~c.cached).subquery().c
    nearest = [(r.many * q + 99) // 100 for q in CENTILES]
    with store.reading() as connection:
        places = connection.execute(sa.select(r.name, r.rank, r.seconds, *nearest).where(r.rank.in_(nearest))).all()
        rows = connection.execute(sums).all()
    at: dict[tuple[str, int], float] = {}
    for group, place, seconds, *wanted in places:
        at |= {(group, q): seconds for q, want in zip(CENTILES, wanted) if want == place}
    spent = sum(int(x) for row in rows for x in row[5:8])
    done = []
    for group, *sums_, mean, about, unpriced in rows:
        whole, seconds = list(map(int, sums_)), [at.get((group, q)) for q in CENTILES]
        share = sum(whole[4:7]) / spent if spent else 0.0
        told: list[Any] = [group, *whole, mean, *seconds, share, bool(about), bool(unpriced)]
        done.append(SummaryRow(*told))
    return sorted(done, key=lambda row: (0 if by == "day" else -row.total, row.name))
