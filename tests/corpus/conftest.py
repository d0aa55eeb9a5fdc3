"""Summary line of the corpus: number of bugs found exactly as expected, and of fixed twins with a false
alarm."""


def pytest_terminal_summary(terminalreporter):
    reports = [
        report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])
    ]
    verdicts = [
        value
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == "corpus"
    ]
    if verdicts:
        bugs = verdicts.count("found") + verdicts.count("missed")
        terminalreporter.write_line(
            f"corpus: found {verdicts.count('found')} of {bugs}, false alarms {verdicts.count('false alarm')}"
        )
