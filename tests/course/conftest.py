"""What the tests of the course share: a ledger of their own, and the count of mutants at the end."""

import pytest


@pytest.fixture(autouse=True)
def state_dir(tmp_path, monkeypatch):
    """An empty state directory, so that no test ticks the ledger of whoever runs it."""
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def pytest_terminal_summary(terminalreporter):
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    verdicts = [value for report in reports for name, value in getattr(report, "user_properties", []) if name == "mutant"]
    if verdicts:
        terminalreporter.write_line(f"mutants: {verdicts.count('rejected')} of {len(verdicts)} rejected")
