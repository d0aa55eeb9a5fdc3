"""Answers that readers of the lessons tried, with one module per reader.

A module defines WRONG and RIGHT, each {check: [(label, answer)]}.
"""

from readers import (
    attacks01_08,
    lesson16,
    lesson17,
    lesson18,
    lesson18c,
    lesson19,
    lesson21,
    lesson22,
    lessons01_04,
    lessons01_08,
    lessons05_08,
    lessons08_09,
    lessons09_15,
    lessons10_12,
    lessons13_23,
)

BOOKS = (
    attacks01_08,
    lesson16,
    lesson17,
    lesson18,
    lesson18c,
    lesson19,
    lesson21,
    lesson22,
    lessons01_04,
    lessons01_08,
    lessons05_08,
    lessons08_09,
    lessons09_15,
    lessons10_12,
    lessons13_23,
)
