"""Rules for the project's English: docstrings begin with a verb, and private words do not occur.

Fresh readers did not understand these words. CONTRIBUTING.md has the rules (How to write).
"""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "sim/README.md",
    "kernels/README.md",
    "docs/design.md",
    "docs/glossary.md",
    "docs/measurements.md",
    "docs/validation.md",
    *(f"docs/site/{path.name}" for path in sorted((ROOT / "docs/site").glob("*.md"))),
    *(f"sim/pages/{path.name}" for path in sorted((ROOT / "sim/pages").glob("*.md"))),
]
# Folders and files whose prose has been rewritten, as patterns below the root.
# Add a pattern after rewriting the docstrings and comments that it matches.
FOLDERS = [
    "kernels/bench",
    "kernels/cases",
    "kernels/common",
    "kernels/conv",
    "kernels/cuda_cpp",
    "kernels/distributed",
    "kernels/flash",
    "kernels/latent",
    "kernels/modules",
    "kernels/multi_token",
    "kernels/reference",
    "kernels/tensor_cores",
    "kernels/triton",
    "sim/*.py",
    "sim/engine",
    "sim/frontend",
    "sim/host",
    "sim/isa",
    "sim/memory",
    "sim/observers",
    "sim/native/*.py",
    "sim/native/codegen",
    "sim/native/lower",
    "sim/native/ptx",
    "sim/native/run",
    "sim/native/split",
    "sim/ptx",
    "sim/viz",
    "notebooks/course",
    "tests",
]

# regular expression for a private word or idiom -> replacement
TERMS = {
    r"shadow words?": "shadow memory",
    r"functions? of words": "int64 runtime helpers",
    r"by fission": "compiled",
    r"(?:which|what|that) stands? for": "refers to; represents; lowers to",
    r"in vain": "wasted; repeatedly failing",
    r"shall": "will; has to",
    r"anew": "again",
    r"also if": "even if",
    r"so many": "that many; the number of",
    r"hangs? on": "depends on",
    r"mend(?:s|ed|ing)?": "fix",
    r"dear": "expensive",
    r"beside": "next to; compared with",
    r"(?:first|last|next|address|element|byte|what|comes?|is) behind": "after",
    r"troubles?": "error flags",
    r"heed(?:s|ed)?": "enabled; considered",
    r"snake": "serpentine order",
    r"absorb(?:s|ed)?": "update; fold into the running state",
    r"visitors?": "K/V block",
    r"without gaps": "contiguous; coalesced",
    r"turned on its side": "transposed",
    r"whoever|whomever": "the thread that",
    r"as (?:Numba|Python|IEEE 754) has (?:it|them)": "as in Numba; Numba's",
    r"meanings? of (?:an |the )?instructions?": "semantics; reference implementation",
    r"by fibers": "interpreted",
    r"Computables?|retrials?": "Rematerializer; rerun",
    r"computed again": "recomputed; rematerialised",
    r"parted": "diverged",
    r"answers? of (?:a|the) regions?": "exit code",
    r"heard|(?:is|are|was|were|be) told(?! apart)": "subscribed; reported",
    r"dirty": "error flags",
    r"trips?|(?:last|first|each|every|next|same|different) rounds?|goe?s? round": "iteration",
    r"books? of": "mutant suites",
    r"(?:each|every|on a|on the) push|(?:the|at) night": "CI run; nightly run",
    r"turns? of (?:a|the) (?:banks?|loop)": "wavefront; iteration",
    r"numbers? of 16 bits?": "16-bit values",
    r"holds? by (?:rows|columns)": "row-major; column-major",
    r"groups? of four lanes": "quad",
    r"walks?": "loop; traversal",
    r"prices?": "cost",
    r"the measure": "the reference",
    r"strangers?": "implementations under test",
    r"places for (?:a )?blocks?": "slots; resident blocks",
    r"(?:the|a) share of": "ratio; fraction",
    r"cache of its own": "L2 cache",
    r"stretch(?:es)?": "chunk",
    r"wires?": "link; interconnect",
    r"share felt": "exposed communication",
    r"row statistics?": "log-sum-exp; delta",
    r"at first reading|from its text alone": "(leave it out)",
    r"for ever": "forever",
}
# pattern of paths -> why its docstrings and comments may contain private words or begin with a noun
ALLOWED = {
    "notebooks/course/check/lesson*.py": "rewritten with the lessons, which print some of them",
    "notebooks/course/check/six_kernels.py": "lesson 04 prints these kernels",
}
# the same for the first words of docstrings
NOUNS_ALLOWED = ALLOWED | {
    "kernels/common/strips.py": "lesson 11 prints these functions, whose docstrings are formulas",
    "notebooks/course/check/decoders.py": "lesson 14b prints faulty decoders with their authors' beliefs",
    "sim/events.py": "the docstring of a hook describes the event that has occurred",
    "tests/course/tiny/01_tiny.py": "the smallest lesson that can be built",
}
HEADLESS = re.compile(r"(What|Who|Whom|Whose|Whether|That|Those|Nobody|Where|How|Which)\b")
# Matches a participle or a gerund as the first word. The words in the lookahead only look like one.
PARTICIPLE = re.compile(r"(?!Need|Feed|Seed|Embed|Speed|Bring|String|Proceed|Exceed)[A-Z][a-z]+(?:ed|ing)\b")
# Words that are no imperative. A wrong or correct answer to an exercise begins with its verdict.
NOT_A_VERB = re.compile(
    r"(?!Wrong: |Correct: )(?:A|An|The|All|Each|Every|One|Two|Some|Any|No|None|Other|This|It|Its|They|These"
    r"|There|Right|True|False|Not|Now|So|As|Like|If|When|Whenever|For|In|On|At|By|From|To|With|Without|Before|After"
    r"|Until|Under|Only|Also|Both|Here)\b|[^A-Z_]"
)


def python_files():
    """Return the Python files of FOLDERS: a folder with all below it, or the files that match a pattern."""
    found = [path for pattern in FOLDERS for path in sorted(ROOT.glob(pattern))]
    return [file for path in found for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def is_allowed(path, patterns):
    return any(path.relative_to(ROOT).match(pattern) for pattern in patterns)


def is_property(node):
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def docstrings(path):
    """Yield (line, name, first sentence, whether it is a function's) for each docstring in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
            text := ast.get_docstring(node)
        ):
            # The name of a property reads as a noun.
            function = isinstance(node, ast.FunctionDef) and not is_property(node)
            yield getattr(node, "lineno", 1), getattr(node, "name", "module"), text, function


def comments(path):
    """Yield (line, text) for each comment in a file."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(io.StringIO(file.read()).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


@functools.cache
def prose(path):
    """Return [(line, text)] for everything in a file that is written for people."""
    if path.suffix == ".py":
        return [(line, text) for line, _, text, _ in docstrings(path)] + list(comments(path))
    text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), path.read_text("utf-8"), flags=re.S)
    # Tables are skipped, because they quote titles of lessons.
    return [(n, line) for n, line in enumerate(text.split("\n"), 1) if not line.startswith("|")]


@pytest.mark.parametrize("pattern", [*FOLDERS, *NOUNS_ALLOWED])
def test_every_pattern_finds_files(pattern):
    assert any(ROOT.glob(pattern)), f"{pattern} names no file: correct FOLDERS and ALLOWED"


def test_docstrings_begin_with_a_verb_or_a_noun():
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}: {text.splitlines()[0]}"
        for path in python_files()
        for line, name, text, function in docstrings(path)
        if HEADLESS.match(text)
        or function
        and (PARTICIPLE.match(text) or NOT_A_VERB.match(text) and not is_allowed(path, NOUNS_ALLOWED))
    ]
    assert not found, "begin these with a verb (Return ...) or a noun:\n" + "\n".join(found)


@pytest.mark.parametrize("term", TERMS)
def test_private_words_stay_out(term):
    word = re.compile(rf"\b(?:{term})\b")
    found = [
        f"{path.relative_to(ROOT)}:{line} {text.strip()[:100]}"
        for path in [*python_files(), *(ROOT / page for page in PAGES)]
        if not is_allowed(path, ALLOWED)
        for line, text in prose(path)
        if word.search(text)
    ]
    assert not found, f"write {TERMS[term]!r} instead:\n" + "\n".join(found)
