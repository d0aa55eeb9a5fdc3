"""Opens the lessons: the doctor first, then copies that belong to the learner, then JupyterLab at the lesson
of the first exercise not done yet, or at the contents page, 00_start_here. One JupyterLab serves the copies:
where it runs already, its address is opened."""

import json
import os
import sys
import webbrowser
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from course import doctor
from course.bootstrap import ROOT, hand_over
from course.progress import COPIES, adopt_users_ledger, done, exercises, next_exercise, place

SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # the names of lessons do not fit next to the dates
    "@jupyterlab/filebrowser-extension:browser": {"showLastModifiedColumn": False},
}
ANSWER_SECONDS = 5  # for a server that runs, to say so


def main(jupyter_arguments: list[str]) -> int:
    """Start JupyterLab on the learner's copies, or open the one that runs; return the exit status, or 1 if
    something is missing that every lesson needs."""
    if doctor.main():
        return 1
    from course.copies import RECORD, copy_lessons, copy_solutions  # the doctor reports a missing Jupyter

    adopted = adopt_users_ledger() if (COPIES / RECORD).exists() else ""
    print(*copy_lessons(ROOT / "notebooks", COPIES), sep="\n")
    copy_solutions(ROOT / "solutions", COPIES / "solutions")
    print(*filter(None, [adopted, where_it_goes_on(COPIES)]), sep="\n", flush=True)
    if server := running_server(COPIES):
        return open_running(server, COPIES, "--no-browser" not in jupyter_arguments)
    write_settings(Path(sys.prefix))
    return hand_over(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            *start_options(COPIES),
            *as_root(jupyter_arguments),
            *jupyter_arguments,
        ]
    )


def where_it_goes_on(copies: Path) -> str:
    """Say why JupyterLab opens another lesson than the first, and how to start again; "" if it opens that."""
    onward = exercise_to_open(copies)
    if onward is None:
        return ""
    total = sum(map(len, exercises().values()))
    return (
        f"{len(done())} of {total} exercises are done here, and {onward} is the next: {place(onward)} opens."
        " To list them: make progress. To start again from the first: make reset."
    )


def running_server(copies: Path) -> dict | None:
    """Return what Jupyter has noted about a server on this folder that answers, or None."""
    from jupyter_server.serverapp import list_running_servers

    for server in list_running_servers():
        if Path(server.get("root_dir", "")) == copies.resolve() and answers(server):
            return server
    return None


def answers(server: dict) -> bool:
    """Return whether a server answers at its address. A server that wants a password counts as one."""
    try:
        urlopen(f"{server['url']}api", timeout=ANSWER_SECONDS).close()
    except HTTPError:
        return True
    except OSError:
        return False
    return True


def open_running(server: dict, copies: Path, in_browser: bool) -> int:
    """Print the address of a server that runs, and open it; return the exit status."""
    token = f"?token={server['token']}" if server["token"] else ""
    address = f"{server['url'].rstrip('/')}{page(copies)}{token}"
    print(
        f"\nJupyterLab already runs on these lessons (process {server['pid']}), and two would overwrite each"
        f" other's files. It is at\n  {address}\nTo start another one, end that one first: press Ctrl-C twice"
        " where it runs.",
        flush=True,
    )
    if in_browser:
        webbrowser.open(address)
    return 0


def as_root(given: list[str]) -> list[str]:
    """Return the argument with which JupyterLab starts for root, as in a container; otherwise it would
    refuse."""
    if getattr(os, "geteuid", lambda: 1)() or "--allow-root" in given:
        return []
    print("You are root, as in a container: JupyterLab is started with --allow-root.", flush=True)
    return ["--allow-root"]


def start_options(copies: Path) -> list[str]:
    """Return JupyterLab's options that serve the copies and open the page to go on at."""
    return [f"--ServerApp.root_dir={copies}", f"--LabApp.default_url={page(copies)}"]


def page(copies: Path) -> str:
    """Return the address, below the server's, of the lesson of the first exercise not done yet, or, where
    none is done, of the first notebook of the folder: the contents page. No fragment names the exercise,
    since Jupyter Server puts its token after one, and then asks for a password."""
    lessons = sorted(copies.glob("[0-9]*.ipynb"))
    return f"/lab/tree/{quote(first_page(copies, lessons))}" if lessons else "/lab"


def first_page(copies: Path, lessons: list[Path]) -> str:
    """Return the name of the notebook to open."""
    onward = exercise_to_open(copies)
    return place(onward) if onward else lessons[0].name


def exercise_to_open(copies: Path) -> str | None:
    """Return the first exercise not done yet, after the last one done; None to open the contents page."""
    onward = next_exercise(max(done(), key=in_order, default=None))
    return onward if done() and onward and (copies / place(onward)).exists() else None


def in_order(number: str) -> tuple[int, ...]:
    """Return "17.2" as (17, 2), to sort exercises by."""
    return tuple(map(int, number.split(".")))


def write_settings(environment: Path) -> None:
    """In our own environment JupyterLab neither asks whether to fetch news nor looks for updates, and shows
    names without dates; a learner's own setting wins, in an overrides.json that is there already too."""
    file = environment / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    if file.parent.parent.is_dir():
        file.parent.mkdir(exist_ok=True)
        given = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(SETTINGS | given, indent=1), encoding="utf-8")
