"""The outline of a source text: which lines belong to which loop, branch and arm of a branch.

Advice about a race depends on the outline. A barrier cannot separate two arms of the same branch, and in a
loop the last line runs before the first line of the next iteration. Python is parsed by `ast`. For C++, only
braces and the keywords of branches and loops are parsed. The cases of a `switch` are arms of a branch. A case
that falls through to the next one belongs to the same arm.
"""

import ast
import functools
import inspect
import linecache
import re
import textwrap
from dataclasses import dataclass, field

FUNCTION, LOOP, BRANCH, ARM, STATEMENT = "function", "loop", "branch", "arm", "statement"
RETURN, LEAVE = "return", "leave"  # LEAVE means `break` or `continue`.


@dataclass
class Node:
    """A function, loop, branch, arm of a branch, or plain statement, from line `first` to line `last`."""

    kind: str
    first: int
    last: int
    parts: list["Node"] = field(default_factory=list)


class Outline:
    """The functions in a source text, as a tree of Nodes. `lines` maps line numbers, from 1, to text."""

    def __init__(self, lines, parts):
        self.lines = dict(enumerate(lines, 1))
        self.root = Node("text", 1, len(lines), parts)
        self.paths = {}  # line -> its path, cached because many races may be on the same lines

    def path(self, line):
        """Return the Nodes that contain a line, outermost first."""
        if line not in self.paths:
            self.paths[line] = self.find_path(line)
        return self.paths[line]

    def find_path(self, line):
        found, node = [], self.root
        while node is not None:
            node = self.part(node, line)
            if node is not None:
                found.append(node)
        return found

    def common(self, *lines):
        """Return the Nodes that contain all these lines, outermost first."""
        paths = [self.path(line) for line in lines]
        return [nodes[0] for nodes in zip(*paths) if all(node is nodes[0] for node in nodes)]

    def function(self, line):
        """Return the innermost function around a line, or None."""
        return next((node for node in reversed(self.path(line)) if node.kind == FUNCTION), None)

    def loop(self, *lines):
        """Return the innermost loop that contains all these lines, or None."""
        return next((node for node in reversed(self.common(*lines)) if node.kind == LOOP), None)

    def branch(self, one, other):
        """Return the branch whose different arms contain the two lines, or None."""
        shared = self.common(one, other)
        apart = shared and shared[-1].kind == BRANCH
        in_arms = apart and all(self.path(line)[len(shared) :][:1] for line in (one, other))
        return shared[-1] if in_arms else None

    def apart(self, line, other):
        """Return whether `other` is in an arm of a branch that does not contain `line`."""
        held = self.common(line, other)
        return any(node.kind == ARM for node in self.path(other)[len(held) :])

    def headed(self, line):
        """Return the loop that has its header on this line, or None."""
        loops = [node for node in self.path(line) if node.kind == LOOP and node.first == line]
        return loops[0] if loops else None

    def between(self, one, other):
        """Return the statement at line `one`, if a new statement can be inserted after it and before line
        `other`; else None."""
        shared = self.common(one, other)
        found = self.part(shared[-1] if shared else self.root, one)
        return found if found is not None and found.last < other else None

    def after(self, one, other):
        """Return the statement from `between` if every thread reaches the code that follows it, else None."""
        found = self.between(one, other)
        return found if found is not None and self.all_reach_end(found) else None

    def divisible(self, node):
        """Return whether each branch around a Node can be split, so that every thread reaches the code after
        the Node.

        A split divides each branch around the Node in two at the Node, and turns an early `return` before the
        Node into a branch around the code that follows the `return`.
        """
        above = [part for part in self.holders(node, self.root) if part.kind != STATEMENT][1:]
        kinds = [part.kind for part in above]
        first = next((at for at, kind in enumerate(kinds) if kind == BRANCH), len(kinds))
        # A branch that encloses a loop cannot be divided in two at a Node inside that loop.
        if LOOP in kinds[first:] or kinds[:1] != [FUNCTION]:
            return False
        held = any(self.leaves(part, LEAVE, node.last) for part in above if part.kind == LOOP)
        earlier = [
            part for part in above[0].parts if self.leaves(part, RETURN, node.last) or part.kind == RETURN
        ]
        in_front = (part.last < node.first and len(part.parts) == 1 and self.ends(part) for part in earlier)
        return not held and (LOOP not in kinds or not earlier) and all(in_front)

    def ends(self, branch):
        """Return whether a branch has a single arm whose only `return` is its last statement."""
        statements = branch.parts[0].parts if branch.kind == BRANCH else []
        inner = statements[0].parts if len(statements) == 1 and statements[0].parts else statements
        kinds = [part.kind for part in inner]
        return kinds[-1:] == [RETURN] and RETURN not in kinds[:-1] and not any(map(self.returns, inner[:-1]))

    def returns(self, node):
        return self.leaves(node, RETURN, node.last)

    def outermost(self, node):
        """Return the outermost branch that contains a Node, or None."""
        return next((part for part in self.holders(node, self.root) if part.kind == BRANCH), None)

    def all_reach_end(self, node):
        """Return whether every thread reaches the code after a Node, as far as the source shows.

        No arm of a branch may contain the Node, and nothing before its end may leave the function or a loop
        around the Node.
        """
        above = self.holders(node, self.root)[1:]
        if any(part.kind in (BRANCH, ARM) for part in above):
            return False
        loops = [part for part in above if part.kind == LOOP]
        holds = [(part, RETURN) for part in above if part.kind == FUNCTION] + [
            (part, LEAVE) for part in loops
        ]
        return not any(self.leaves(part, kind, node.last) for part, kind in holds)

    def holders(self, node, within):
        """Return the Nodes that contain a Node, from `within` inwards. Return an empty list if `within` does
        not contain the Node.

        The search compares identities, because several Nodes may have the same lines.
        """
        if any(part is node for part in within.parts):
            return [within]
        found = next(filter(None, (self.holders(node, part) for part in within.parts)), [])
        return [within, *found] if found else []

    def leaves(self, node, kind, last):
        """Return whether a statement of this kind (RETURN or LEAVE), at or before line `last`, leaves the
        Node."""
        parts = [
            part for part in node.parts if part.first <= last and not (kind == LEAVE and part.kind == LOOP)
        ]
        return any(part.kind == kind or self.leaves(part, kind, last) for part in parts)

    def part(self, node, line):
        """Return the direct child of a Node that contains a line, or None."""
        return next((part for part in node.parts if part.first <= line <= part.last), None)

    def innermost(self, line):
        return self.path(line)[-1]

    def text(self, node):
        """Return a Node's lines as (number, text) pairs."""
        return [(number, self.lines[number]) for number in range(node.first, node.last + 1)]


# --- Python -------------------------------------------------------------------------------------------------


def of_python(text):
    """Return the Outline of Python source, or None if it has a syntax error."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    return Outline(text.splitlines(), list(map(of_statement, tree.body)))


def of_statement(node):
    parts = [part for name in ("body", "orelse", "finalbody") for part in getattr(node, name, [])]
    first, last = node.lineno, node.end_lineno
    if isinstance(node, ast.If):
        arms = [list(map(of_statement, arm)) for arm in (node.body, node.orelse) if arm]
        return Node(BRANCH, first, last, [Node(ARM, arm[0].first, arm[-1].last, arm) for arm in arms])
    kind = STATEMENT
    if isinstance(node, (ast.For, ast.While)):
        kind = LOOP
    elif isinstance(node, ast.FunctionDef):
        kind = FUNCTION
    elif isinstance(node, ast.Return):
        kind = RETURN
    elif isinstance(node, (ast.Break, ast.Continue)):
        kind = LEAVE
    return Node(kind, first, last, [of_statement(part) for part in parts if isinstance(part, ast.stmt)])


@functools.lru_cache(256)
def of_code(code):
    """Return the Outline of a Python function from its code object, or None. Line 1 is the `def` line."""
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    try:
        block = inspect.getblock(lines)
    except (SyntaxError, IndentationError):
        return None
    # code that was not rewritten begins with its decorators, so its lines have other numbers
    while block and block[0].lstrip().startswith("@"):
        return None
    return of_python(textwrap.dedent("".join(block)))


def of_codes(codes):
    """Return a function that maps a Site to its function's Outline. It returns None if the function's name is
    ambiguous.

    codes: a function that returns the launch's code objects.
    """

    def outline(site):
        named = [code for code in codes() if code.co_name == site.function]
        places = {(code.co_filename, code.co_firstlineno) for code in named}
        return of_code(named[0]) if len(places) == 1 else None

    return outline


# --- C++ ----------------------------------------------------------------------------------------------------


def of_cpp(text):
    """Return the Outline of C++ source. If the parser fails, the rest of the source is missing from the
    Outline."""
    return Outline(text.splitlines(), Braces(plain(text)).declarations())


def plain(text):
    """Return C++ text with comments, literals and preprocessor lines replaced by spaces, so that every
    other character stays at its position."""
    blank = re.compile(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^[ \t]*#(?:\\\n|[^\n])*", re.S | re.M
    )
    return blank.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def is_left(node):
    """Return whether no thread reaches the code after a Node, because the Node ends with a jump."""
    return node.kind in (RETURN, LEAVE) or node.kind == STATEMENT and any(map(is_left, node.parts[-1:]))


class Braces:
    """A parser for C++ statements.

    at: the current position in the text.
    breaks: the Nodes of the `break` statements that leave the innermost loop or `switch`.
    """

    def __init__(self, text):
        self.text, self.at, self.breaks = text, 0, []

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def space(self):
        self.at = re.compile(r"\s*").match(self.text, self.at).end()

    def word(self):
        """Return the next keyword, identifier or character, without consuming it."""
        self.space()
        found = re.compile(r"\w+|.", re.S).match(self.text, self.at)
        return found[0] if found else ""

    def skip(self, ends):
        """Advance to the first character in `ends` that is outside brackets."""
        depth = 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if depth == 0 and letter in ends:
                return
            depth += (letter in "([{") - (letter in ")]}")
            self.at += 1

    def brackets(self):
        """Advance past a parenthesised expression."""
        self.skip("(")
        self.at += 1
        self.skip(")")
        self.at += 1

    def declarations(self):
        """Return the functions up to a closing brace or the end of the text, including functions inside
        namespaces and classes."""
        found = []
        while self.word() and self.word() != "}":
            begin = self.at
            self.skip("{;}")
            header, is_block = self.text[begin : self.at], self.text[self.at : self.at + 1] == "{"
            if not is_block:
                self.at += self.text[self.at : self.at + 1] == ";"
                if self.at == begin:
                    break
                continue
            if "(" in header:
                parts = self.block()
                found.append(Node(FUNCTION, self.line(begin), self.line(self.at - 1), parts))
            else:
                self.at += 1
                found += self.declarations()
                self.at += 1
        return found

    def block(self):
        """Return the statements between braces."""
        parts = []
        self.at += 1
        while self.word() not in ("}", ""):
            parts.append(self.statement())
        self.at += 1
        return parts

    def statement(self):
        word = self.word()
        begin = self.at
        if word == "{":
            parts = self.block()
            return Node(STATEMENT, self.line(begin), self.line(self.at - 1), parts)
        if word == "if":
            return self.branch(begin)
        if word == "switch":
            return self.switch(begin)
        if word in ("for", "while"):
            self.brackets()
            body, _ = self.body_and_breaks()
            return Node(LOOP, self.line(begin), self.line(self.at - 1), body)
        if word == "do":
            self.at += 2
            body, _ = self.body_and_breaks()
            self.skip(";")
            self.at += 1
            return Node(LOOP, self.line(begin), self.line(self.at - 1), body)
        self.skip(";}")
        self.at += self.text[self.at : self.at + 1] == ";"
        kind = {"return": RETURN, "break": LEAVE, "continue": LEAVE}.get(word, STATEMENT)
        node = Node(kind, self.line(begin), self.line(max(self.at - 1, begin)))
        if word == "break":
            self.breaks.append(node)
        return node

    def body(self):
        """Return the statements of a loop or an arm, with or without braces."""
        return self.block() if self.word() == "{" else [self.statement()]

    def body_and_breaks(self):
        """Return the statements of a loop, and its `break` statements."""
        outer, self.breaks = self.breaks, []
        body, breaks, self.breaks = self.body(), self.breaks, outer
        return body, breaks

    def switch(self, begin):
        self.brackets()
        if self.word() != "{":
            body, _ = self.body_and_breaks()
            return Node(STATEMENT, self.line(begin), self.line(self.at - 1), body)
        self.at += 1
        outer, self.breaks = self.breaks, []
        arms = []
        while self.word() not in ("}", ""):
            start, is_label = self.at, self.label()
            if is_label and (not arms or any(map(is_left, arms[-1].parts[-1:]))):
                arms.append(Node(ARM, self.line(start), self.line(start)))
            if not is_label:
                statement = self.statement()
                if arms:  # a statement before the first label is never executed
                    arms[-1].parts.append(statement)
                    arms[-1].last = statement.last
        self.at += 1
        for node in self.breaks:
            node.kind = STATEMENT  # it leaves the `switch`, and no loop around it
        self.breaks = outer
        return Node(BRANCH if arms else STATEMENT, self.line(begin), self.line(self.at - 1), arms)

    def label(self):
        """Advance past a label of a `switch`. Return whether there is one."""
        found = re.compile(r"(?:case\b(?:::|[^:;{}])+|default\s*):").match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found is not None

    def branch(self, begin):
        self.brackets()
        arms = [self.arm()]
        if self.word() == "else":
            self.at += len("else")
            arms.append(self.arm())
        return Node(BRANCH, self.line(begin), arms[-1].last, arms)

    def arm(self):
        self.space()
        begin = self.at
        body = self.body()
        return Node(ARM, self.line(begin), self.line(self.at - 1), body)
