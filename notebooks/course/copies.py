"""Creates the learner's copies of the lessons in my_lessons/. An existing copy is never overwritten.

JupyterLab serves only this folder, so the pages to which lessons link are copied into it, too. These copies
are overwritten each time.
"""

import json
import re
from hashlib import sha256
from pathlib import Path

from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager

KERNEL = "python3"
PAGES = b"](../docs/", b"](docs/"  # links to pages, as published and in a copy
RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]*)[^)]*\)")
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
            file.write(as_this_kernel_writes(content.replace(*PAGES)))
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


def copy_pages(root: Path, copies: Path) -> None:
    """Copy the pages in docs/ to which lessons link into the learner's folder.

    Links to lessons then lead to the learner's copies. Other links are replaced by their text and the path of
    their target, because JupyterLab cannot open files outside the folder. Existing copies are overwritten.
    """
    lessons = b"".join(lesson.read_bytes() for lesson in (root / "notebooks").glob("[0-9]*.ipynb"))
    (copies / "docs").mkdir(parents=True, exist_ok=True)
    for name in set(re.findall(re.escape(PAGES[0]) + rb"([^)#]+)", lessons)):
        page = root / "docs" / name.decode()
        text = RELATIVE_LINK.sub(lambda link: link_in_copy(*link.groups()), page.read_text(encoding="utf-8"))
        (copies / "docs" / page.name).write_text(text, encoding="utf-8")


def link_in_copy(text: str, target: str) -> str:
    """Return a link of a page in docs/ as it appears in the page's copy.

    >>> link_in_copy("lesson 06", "../notebooks/06_warps.ipynb")
    '[lesson 06](../06_warps.ipynb)'
    >>> link_in_copy("its guide", "../sim/README.md")
    'its guide (`sim/README.md`)'
    """
    if target.startswith("../notebooks/"):
        return f"[{text}](../{target.removeprefix('../notebooks/')})"
    return f"{text} (`{target.removeprefix('../') if target.startswith('../') else f'docs/{target}'}`)"


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
