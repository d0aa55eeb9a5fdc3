"""A lexer for PTX text.

Source: PTX ISA, chapter 4, "Syntax".
"""

import re
from bisect import bisect_right

from sim.errors import LaunchError

TOKEN = re.compile(
    r"""
    (?P<blank>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<bits>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b)
  | (?P<number>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+(?:[eE][+-]?\d+)|\d+U?)
  | (?P<name>[A-Za-z_$%.][\w$.]*(?:::[\w$.]+)*)
  | (?P<mark>[@!|{}()\[\],;:=<>+\-*])
""",
    re.VERBOSE | re.DOTALL,
)


class Tokens:
    """A reader of tokens from left to right. `at` is the index of the next token."""

    def __init__(self, text):
        self.text = text
        self.breaks = [match.start() for match in re.finditer("\n", text)]
        # The tokens, and the position of each token in the text.
        self.tokens, self.positions = [], []
        self.read_tokens()
        self.at = 0

    def read_tokens(self):
        """Split the text into tokens. Raise LaunchError at a character that cannot begin a token."""
        position = 0
        while position < len(self.text):
            match = TOKEN.match(self.text, position)
            if match is None:
                self.positions.append(position)
                raise self.error(
                    f"cannot read {self.text[position : position + 20]!r}", len(self.positions) - 1
                )
            if match.lastgroup != "blank":
                # `.reg.b32` consists of two directives. If a name does not begin with a dot, its dots are
                # part of the name.
                parts = re.findall(r"\.[^.]+", match[0]) if match[0][0] == "." else [match[0]]
                self.tokens += parts
                self.positions += [position] * len(parts)
            position = match.end()

    def line(self, at=None):
        """Return the line of a token, counted from 1. The default is the next token."""
        # At the end of the text, use the line of the last token.
        place = self.positions[min(self.at if at is None else at, len(self.positions) - 1)]
        return bisect_right(self.breaks, place - 1) + 1

    def error(self, what, at=None):
        """Return a LaunchError that contains the line of a token. The default is the next token."""
        return LaunchError(f"PTX line {self.line(at)}: {what}")

    @property
    def next(self):
        """The next token, or "" at the end of the text."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted=None):
        """Consume the next token and return it.

        Raise LaunchError at the end of the text, or if the token is not `wanted`.
        """
        token = self.next
        if not token:
            raise self.error(f"the text ends here, but {wanted or 'more'} has to follow: is it truncated?")
        if wanted not in (None, token):
            raise self.error(f"wanted {wanted!r}, got {token!r}")
        self.at += 1
        return token

    def accept(self, token):
        """Consume the next token if it equals `token`. Return whether it does."""
        if self.next == token:
            self.at += 1
            return True
        return False

    def comma_list(self, read):
        """Return the results of calling `read` for each item of a comma-separated list."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        return found

    def list_until(self, end, read):
        """Return the results of calling `read` for each item up to the token `end`. The commas between items
        are optional."""
        found = []
        while not self.accept(end):
            found.append(read())
            self.accept(",")
        return found

    def integer(self):
        """Consume an integer constant, optionally with a minus sign, and return its value."""
        sign = -1 if self.accept("-") else 1
        token = self.take()
        try:
            return sign * parse_integer(token)
        except ValueError:
            raise self.error(f"wanted an integer, got {token!r}", self.at - 1) from None


def parse_integer(token):
    """Return the value of an integer token. As in C, a leading 0 marks an octal number.

    Source: PTX ISA 4.5.1, "Integer Constants".
    """
    # PTX marks an unsigned constant by a U at its end.
    token = token.rstrip("U")
    if len(token) > 1 and token[0] == "0" and token[1].isdigit():
        return int(token, 8)
    return int(token, 0)
