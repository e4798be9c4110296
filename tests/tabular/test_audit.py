"""The audit: statements fail as stated and hold as repaired, by any number of processes."""

from __future__ import annotations

from staq.tabular.audit import audit


def test_the_audit_finds_what_fails_and_that_the_repairs_hold() -> None:
    rows = {row.statement: row for row in audit(120, seed=17)}
    broken = ("Lemma 4.3", "Theorem 4.2", "Theorem 4.4", "Theorem 4.2 with update errors")
    for name in broken:
        assert rows[name].violations_as_stated > 0, name
        assert rows[name].smallest_counterexample is not None
    for row in rows.values():
        assert row.trials == 120
        if row.violations_as_repaired is None:
            assert row.violations_as_stated == 0, row.statement
        else:
            assert row.violations_as_repaired == 0, row.statement


def test_processes_do_not_change_the_audit() -> None:
    assert audit(24, seed=1, processes=2) == audit(24, seed=1)
