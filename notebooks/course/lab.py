"""The `lab` command: runs the doctor, copies the lessons and opens JupyterLab.

It opens the lesson of the first unfinished exercise, or the contents page (00_start_here). If JupyterLab is
already running on the copies, it opens that server's address.
"""

import json
import os
import shutil
import subprocess
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
    # The file browser is too narrow for a lesson's name and its date.
    "@jupyterlab/filebrowser-extension:browser": {"showLastModifiedColumn": False},
}
ANSWER_SECONDS = 5  # maximum time to wait for a server that may already be running


def main(jupyter_arguments: list[str], lesson: str | None = None) -> int:
    """Start JupyterLab on the learner's copies, or open the running server. Return its exit status, or 1 if a
    component is missing that every lesson needs.

    lesson: the file name of the notebook to open. Without it, `first_page` chooses one.
    """
    if doctor.main():
        return 1
    # imported after the doctor has run, which reports a missing Jupyter
    from course.copies import RECORD, copy_lessons, copy_pages, copy_solutions

    adopted = adopt_users_ledger() if (COPIES / RECORD).exists() else ""
    print(*copy_lessons(ROOT / "notebooks", COPIES), sep="\n")
    copy_solutions(ROOT / "solutions", COPIES / "solutions")
    copy_pages(ROOT, COPIES)
    print(*filter(None, [adopted, "" if lesson else resume_message(COPIES)]), sep="\n", flush=True)
    lesson = lesson or first_page(COPIES)
    if "--code" in jupyter_arguments:
        return open_in_code(COPIES / lesson)
    if server := running_server(COPIES):
        return open_running(server, lesson, "--no-browser" not in jupyter_arguments)
    write_settings(Path(sys.prefix))
    return hand_over(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            f"--ServerApp.root_dir={COPIES}",
            f"--LabApp.default_url={page_path(lesson)}",
            *as_root(jupyter_arguments),
            *jupyter_arguments,
        ]
    )


def open_in_code(lesson: Path) -> int:
    """Open a lesson in Visual Studio Code. Return the exit status."""
    code = shutil.which("code")
    if code is None:
        print(f"There is no command `code` here. Open {lesson} in your editor.", file=sys.stderr)
        return 1
    return subprocess.run([code, "--reuse-window", str(ROOT), str(lesson)]).returncode


def resume_message(copies: Path) -> str:
    """Return a message if JupyterLab does not open at the first lesson, else "".

    The message also says how to start again from the first lesson.
    """
    onward = exercise_to_open(copies)
    if onward is None:
        return ""
    total = sum(map(len, exercises().values()))
    return (
        f"{len(done())} of {total} exercises are done here, and {onward} is the next: {place(onward)} opens."
        " To list them: make progress. To start again from the first: make reset."
    )


def running_server(copies: Path) -> dict | None:
    """Return Jupyter's record of a responsive server on this folder, or None."""
    from jupyter_server.serverapp import list_running_servers

    for server in list_running_servers():
        if Path(server.get("root_dir", "")) == copies.resolve() and responds(server):
            return server
    return None


def responds(server: dict) -> bool:
    """Return whether a server responds at its address. A request for a password counts as a response."""
    try:
        urlopen(f"{server['url']}api", timeout=ANSWER_SECONDS).close()
    except HTTPError:
        return True
    except OSError:
        return False
    return True


def open_running(server: dict, lesson: str, in_browser: bool) -> int:
    """Print and open the address of a lesson on a running server. Return the exit status."""
    token = f"?token={server['token']}" if server["token"] else ""
    address = f"{server['url'].rstrip('/')}{page_path(lesson)}{token}"
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
    """Return the argument that JupyterLab needs to run as root, as in a container."""
    if getattr(os, "geteuid", lambda: 1)() or "--allow-root" in given:
        return []
    print("You are root, as in a container: JupyterLab is started with --allow-root.", flush=True)
    return ["--allow-root"]


def page_path(lesson: str) -> str:
    """Return the path of a lesson, relative to the server's address.

    The URL has no fragment, because Jupyter Server appends its token to the URL. Inside a fragment the token
    would be ignored, and the server would ask for a password.
    """
    return f"/lab/tree/{quote(lesson)}"


def first_page(copies: Path) -> str:
    """Return the file name of the notebook with the first unfinished exercise, or of the contents page if no
    exercise is done."""
    onward = exercise_to_open(copies)
    return place(onward) if onward else min(file.name for file in copies.glob("[0-9]*.ipynb"))


def exercise_to_open(copies: Path) -> str | None:
    """Return the first unfinished exercise after the last one done, or None for the contents page."""
    onward = next_exercise(max(done(), key=in_order, default=None))
    return onward if done() and onward and (copies / place(onward)).exists() else None


def in_order(number: str) -> tuple[int, ...]:
    """Convert "17.2" to (17, 2) as a sort key."""
    return tuple(map(int, number.split(".")))


def write_settings(environment: Path) -> None:
    """Disable JupyterLab's news prompt, update check and date column in .venv.

    An existing overrides.json is left unchanged.
    """
    file = environment / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    if file.parent.parent.is_dir():
        file.parent.mkdir(exist_ok=True)
        given = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(SETTINGS | given, indent=1), encoding="utf-8")
