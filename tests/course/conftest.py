"""Fixtures that the course tests share, and a last line of output with the number of mutants tested."""

import pytest

from course.cuda_cpp import have_nvrtc


@pytest.fixture(autouse=True)
def state_dir(tmp_path, monkeypatch):
    """Return an empty state directory, so that no test changes the progress list of the person who runs
    it."""
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def compiler(request):
    """Skip an answer in CUDA C++ if NVRTC is missing, because its check would only report that it could not
    run."""
    given = getattr(request.node, "callspec", None)
    name = str(given and (given.params.get("name") or given.params.get("check")))
    if name in ("ex22_2", "ex22_3", "ex22_4", "ex22_5") and not have_nvrtc():
        pytest.skip("NVRTC is not here")


# number of wrong answers to exercises that were tested
KINDS = ["mutant", "mutations", "breakers", "readers' wrong answers"]


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
