"""What the tests of the course share: a ledger of their own, and the count of mutants at the end."""

import pytest


@pytest.fixture(autouse=True)
def state_dir(tmp_path, monkeypatch):
    """An empty state directory, so that no test ticks the ledger of whoever runs it."""
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


KINDS = ["mutant", "mutations", "breakers", "readers' wrong answers"]  # of wrong answers to exercises


def pytest_terminal_summary(terminalreporter):
    reports = [
        report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])
    ]
    said = [pair for report in reports for pair in getattr(report, "user_properties", [])]
    verdicts = {kind: [value for name, value in said if name == kind] for kind in KINDS}
    counts = [
        f"{kind} {found.count('rejected')} of {len(found)}" for kind, found in verdicts.items() if found
    ]
    if counts:
        terminalreporter.write_line(f"wrong answers rejected: {', '.join(counts)}")
