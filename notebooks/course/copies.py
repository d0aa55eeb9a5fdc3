"""Creates the learner's copies of the lessons in my_lessons/, which are never overwritten."""

import json
from hashlib import sha256
from pathlib import Path

from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager

KERNEL = "python3"
RECORD = ".as_copied.json"  # file that maps each copy to the published text from which it was made


def copy_lessons(published: Path, copies: Path) -> list[str]:
    """Copy each lesson that has no copy yet, and return one status line per lesson."""
    copies.mkdir(exist_ok=True)
    record_file = copies / RECORD
    record = json.loads(record_file.read_text(encoding="utf-8")) if record_file.exists() else {}
    lines = [
        "",
        f"Your lessons are in {copies.name}/: write in them as you like, nothing here ever overwrites them.",
    ]
    for lesson in sorted(published.glob("[0-9]*.ipynb")):
        content = lesson.read_bytes()
        lines.append("  " + copy_lesson(copies / lesson.name, content, record))
    record_file.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    return lines


def copy_lesson(copy: Path, content: bytes, record: dict[str, str]) -> str:
    """Copy a lesson to `copy` unless that file exists, and return a status line.

    The published content is recorded, so that a later change to the lesson can be reported.
    """
    now = sha256(content).hexdigest()
    try:
        with copy.open("xb") as file:
            file.write(as_this_kernel_writes(content))
    except FileExistsError:
        if record.get(copy.name, now) == now:
            return f"{copy.name}: yours, kept"
        return (
            f"{copy.name}: yours, kept. The published lesson has changed since; to get it, rename your file"
            " and start again"
        )
    record[copy.name] = now
    return f"{copy.name}: new"


def copy_solutions(published: Path, copies: Path) -> None:
    """Copy the executed solutions into the learner's folder, where links in the lessons point.

    Existing copies are overwritten, because learners do not edit them.
    """
    copies.mkdir(exist_ok=True)
    for solution in published.glob("[0-9]*.ipynb"):
        (copies / solution.name).write_bytes(as_this_kernel_writes(solution.read_bytes()))


def as_this_kernel_writes(content: bytes) -> bytes:
    """Return a notebook with the metadata of this machine's kernel.

    JupyterLab writes this metadata when the kernel starts, and marks the notebook as modified if it differs.
    """
    notebook = json.loads(content)
    spec = KernelSpecManager().get_kernel_spec(KERNEL)
    notebook["metadata"] |= {
        "kernelspec": {"display_name": spec.display_name, "language": spec.language, "name": KERNEL},
        "language_info": IPythonKernel.language_info,
    }
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
