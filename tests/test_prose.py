"""Rules for the project's English: docstrings begin with a verb, and private words stay out.

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
}
HEADLESS = re.compile(r"(What|Who|Whom|Whose|Whether|That|Those|Nobody|Where|How|Which)\b")
# Matches a participle or a gerund as the first word. The words in the lookahead only look like one.
PARTICIPLE = re.compile(r"(?!Need|Feed|Embed|Speed|Bring|String|Proceed|Exceed)[A-Z][a-z]+(?:ed|ing)\b")


def python_files():
    """Return the Python files of FOLDERS: a folder with all below it, or the files that match a pattern."""
    found = [path for pattern in FOLDERS for path in sorted(ROOT.glob(pattern))]
    return [file for path in found for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


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


@pytest.mark.parametrize("pattern", FOLDERS)
def test_every_pattern_finds_files(pattern):
    assert any(ROOT.glob(pattern)), f"{pattern} names no file: correct FOLDERS"


def test_docstrings_begin_with_a_verb_or_a_noun():
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}: {text.splitlines()[0]}"
        for path in python_files()
        for line, name, text, function in docstrings(path)
        if HEADLESS.match(text) or function and PARTICIPLE.match(text)
    ]
    assert not found, "begin these with a verb (Return ...) or a noun:\n" + "\n".join(found)


@pytest.mark.parametrize("term", TERMS)
def test_private_words_stay_out(term):
    word = re.compile(rf"\b(?:{term})\b")
    found = [
        f"{path.relative_to(ROOT)}:{line} {text.strip()[:100]}"
        for path in [*python_files(), *(ROOT / page for page in PAGES)]
        for line, text in prose(path)
        if word.search(text)
    ]
    assert not found, f"write {TERMS[term]!r} instead:\n" + "\n".join(found)
