"""Number agreement of nouns in messages."""


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: plural(1, "finding") is "1 finding", plural(2, "launch", "launches") is
    "2 launches".

    several: the plural form, if it is not formed with an s.
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def joined(words: list[str]) -> str:
    """Return words as a list in a sentence: ["a", "b", "c"] is "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
