"""Run the public CUDA programs that programs.txt lists, and record what `python -m sim run` says about each.

    python tests/sim/programs/trial.py SOURCES WORK [--only TEXT] [--again] [--seconds 90] [--minutes 8]
    python tests/sim/programs/trial.py SOURCES WORK --planted
    python tests/sim/programs/trial.py SOURCES WORK --table

With --planted, it runs the programs of planted.txt, each with one bug. With --table, it prints the results as
a table in Markdown.

SOURCES is a folder with one checkout per project, named as in programs.txt. WORK receives the edited sources,
the libraries that nvcc builds (a later run reuses them), the output of each program and results.json.
The programs are not part of this project, and no test runs this file.
"""

import argparse
import hashlib
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

LIST = Path(__file__).with_name("programs.txt")
PLANTED = Path(__file__).with_name("planted.txt")
PASSED = re.compile(
    r"\bPASS(ED)?\b|\bpassed\b|\bsuccess(ful(ly)?)?\b|\bOK\b|results match|verifying: true", re.IGNORECASE
)
# "0 failures" and "failures: 0" are no failed check
FAILED = re.compile(
    r"(?<!\b0 )\bFAIL\w*\b(?!: 0\b)|mismatch|incorrect|\berrors? (at|in)\b|wrong", re.IGNORECASE
)


def entries():
    """Yield (path, arguments, sizes, options of nvcc, options of sim) for each program of the list."""
    for line in LIST.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        path, arguments, sizes, options, extra = (*(part.strip() for part in line.split("|")), *[""] * 4)[:5]
        sizes = dict(part.split("=", 1) for part in sizes.split())
        yield path, arguments.split(), sizes, options.split(), extra.split()


def resize(text, sizes):
    """Return a program's source with other sizes: each definition of a name gets the new value.

    A definition is `#define NAME value`, `type NAME = value` or `constexpr type NAME(value)`.
    """
    for name, value in sizes.items():
        define = rf"(?m)^(\s*#\s*define\s+{name}\s+)\S.*$"
        variable = (
            rf"\b((?:int|long|size_t|float|unsigned|uint32_t|int64_t|uint64_t|auto)\s+{name}\s*=\s*)[^,;]+"
        )
        constructed = rf"(\bconstexpr [\w ]+ {name}\()[^)]+"
        for pattern in (define, variable, constructed, rf"(\b{name}\s*=\s*)[^,;=]+"):
            text, count = re.subn(pattern, rf"\g<1>{value}", text)
            if count:
                break
        else:
            raise SystemExit(f"the source does not define {name}")
    return text


def build(path, sizes, options, sources, work, change=None):
    """Return (library, seconds, "") or (None, seconds, the compiler's messages).

    change: the text of a planted bug, and the text that it replaces.
    """
    source = sources / path
    home = work / path.replace("/", "+").removesuffix(".cu")
    home.mkdir(parents=True, exist_ok=True)
    text = resize(source.read_text(errors="surrogateescape"), sizes)
    if change:
        old, new = (part.replace("\\n", "\n") for part in change)
        assert old in text, (path, old)
        text = text.replace(old, new, 1)
    edited = home / source.name
    flags = [f"-I{source.parent}"]
    flags += [f"-I{(source.parent / o[2:]).resolve()}" if o.startswith("-I") else o for o in options]
    digest = hashlib.sha256("\0".join([text, *flags]).encode(errors="surrogateescape")).hexdigest()[:12]
    library, known = home / f"{source.stem}.so", home / "digest.txt"
    began = time.monotonic()
    if not library.exists() or not known.exists() or known.read_text() != digest:
        edited.write_text(text, errors="surrogateescape")
        command = [sys.executable, "-m", "sim", "build", str(edited), "-o", str(library)]
        made = subprocess.run(
            command + [f"--option={flag}" for flag in flags], capture_output=True, text=True, timeout=600
        )
        if made.returncode:
            return None, time.monotonic() - began, made.stderr
        known.write_text(digest)
    return library, time.monotonic() - began, ""


def run(library, arguments, seconds, extra):
    """Run a program. Return a record of its exit status, time, output and findings."""
    command = [sys.executable, "-m", "sim", "run", *extra, library.name, "--", *arguments]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    home = library.parent
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # noqa: E731
    with open(home / "stdout.txt", "wb") as out, open(home / "stderr.txt", "wb") as err:
        child = subprocess.Popen(
            command, cwd=home, stdout=out, stderr=err, stdin=subprocess.DEVNULL, preexec_fn=limit
        )
        try:
            status = child.wait(timeout=20 * seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = (home / "stdout.txt").read_text(errors="replace")
    said = (home / "stderr.txt").read_text(errors="replace")
    return {
        "status": status,
        "wall_s": round(time.monotonic() - began, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "check": "failed" if FAILED.search(output) else "passed" if PASSED.search(output) else "none",
        "summary": next((line for line in reversed(said.splitlines()) if line.startswith("sim: ")), ""),
        "ended": "ended by" not in said and status in (0, 1, 2),
    }


def plant(options, sources, work):
    """Run each program of planted.txt, and print whether the expected finding was reported."""
    given = {path: rest for path, *rest in entries()}
    for line in PLANTED.read_text().splitlines():
        if line.startswith("#") or options.only and not any(part in line for part in options.only.split(",")):
            continue
        path, change, kind, texts = (part.strip(" ") for part in line.split(" | "))
        arguments, sizes, flags, extra = given[path]
        change = [part.removeprefix(" ").removesuffix(" ") for part in change.split("=>", 1)]
        library, _, messages = build(path, sizes, flags, sources, work, change)
        if library is None:
            print(path, messages)
            continue
        record = run(library, arguments, options.seconds, extra)
        said = (library.parent / "stderr.txt").read_text(errors="replace").split("\n\n")
        same = [text for text in said if re.match(rf"(warning: )?{kind}\b", text)]
        found = [text for text in same if all(part.strip() in text for part in texts.split("&"))]
        print(
            f"{'found' if found else 'MISSED'}: {path}: {kind}",
            record["cpu_s"],
            record["summary"],
            flush=True,
        )
        print("\n".join((found or same or said)[:1]), "\n", flush=True)


def table(results):
    """Yield the lines of a Markdown table of the results, in the order of programs.txt."""
    yield "| program | arguments and sizes | launches | findings | own check | CPU s |"
    yield "|---|---|---|---|---|---|"
    for path, *_ in entries():
        record = results.get(path, {"status": "not run"})
        given = " ".join(
            [*record.get("arguments", ()), *(f"{k}={v}" for k, v in record.get("sizes", {}).items())]
        )
        summary = record.get("summary", "")
        launches = match[1] if (match := re.search(r"([\d,]+) launch", summary)) else ""
        kinds = (
            match[1] if (match := re.search(r"findings? \((.*)\)", summary)) else "none" if summary else ""
        )
        status = record["status"]
        if not isinstance(status, int) or not record["ended"]:
            kinds = status if isinstance(status, str) else "did not end"
        path = path.replace("/src/", "/").replace("/exercises/", "/").replace("/Samples/0_Introduction/", "/")
        check, seconds = record.get("check", ""), record.get("cpu_s", "")
        yield f"| {path} | {given} | {launches} | {kinds} | {check} | {seconds} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "--only", help="run only programs whose path contains one of these, separated by commas"
    )
    parser.add_argument("--again", action="store_true", help="also run programs that have a result")
    parser.add_argument("--planted", action="store_true", help="run the programs with planted bugs")
    parser.add_argument("--table", action="store_true", help="print a table of the results")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--minutes", type=float, help="start no program after this time")
    parser.add_argument("--seconds", type=int, default=90, help="limit of CPU seconds per program")
    options = parser.parse_args()
    sources, work = options.sources.resolve(), options.work.resolve()
    store = work / "results.json"
    if options.table:
        print("\n".join(table(json.loads(store.read_text()))))
        return
    if options.planted:
        plant(options, sources, work / "planted")
        return
    end = time.monotonic() + 60 * (options.minutes or float("inf"))
    for path, arguments, sizes, flags, extra in entries():
        if time.monotonic() > end:
            break
        results = json.loads(store.read_text()) if store.exists() else {}
        if options.only and not any(part in path for part in options.only.split(",")):
            continue
        if path in results and not options.again and not options.build_only:
            continue
        library, seconds, messages = build(path, sizes, flags, sources, work)
        if options.build_only:
            print(path, round(seconds, 1), messages[-2000:], flush=True)
            continue
        record = (
            {"status": "not built", "messages": messages[:3000]}
            if library is None
            else run(library, arguments, options.seconds, extra)
        )
        record |= {
            "arguments": arguments,
            "sizes": sizes,
            "options": flags,
            "extra": extra,
            "build_s": round(seconds, 1),
        }
        results = json.loads(store.read_text()) if store.exists() else {}
        store.write_text(json.dumps(results | {path: record}, indent=1))
        print(path, {k: v for k, v in record.items() if k != "messages"}, messages[:600], flush=True)


if __name__ == "__main__":
    main()
