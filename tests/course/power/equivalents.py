"""Mutations that change nothing which an exercise asks for, each looked at, with the reason: {check: {label:
reason}}."""

EMPTY = "a side that has read nothing has l = 0 and o = 0, so its factor is free"
ROOM = "a shared array with more room than the statement asks for"
FREE_START = "the first visit multiplies it by exp(-inf) = 0"
ONE_WRITER = "thread 1 writes the block's result instead of thread 0; one thread does"
PADDING = "what pads one tile meets the zeros that pad the other"

EQUIVALENT = {
    "ex01_2": {"line 2: 1 more in 0.0": EMPTY, "line 3: 1 more in 0.0": EMPTY},
    "ex03_3": {"line 9: 1 more in 0": ONE_WRITER},
    "ex03_4": {
        "line 4: 1 more in 0": PADDING,
        "line 4: 1 less in 0": PADDING,
        "line 5: 1 more in 0": PADDING,
        "line 5: 1 less in 0": PADDING,
    },
    "ex04_1": {"line 3: Add becomes Sub in x + y": "x - y is even where x + y is"},
    "ex04_3": {
        "line 1: 1 more in 32": ROOM,
        "line 5: 1 more in 0": ONE_WRITER,
        "line 7: from 0 in range(1, cuda.blockDim.x)": "the first number is compared with itself",
    },
    "ex04_4": {
        "line 1: 1 more in 32": ROOM,
        "line 5: Lt becomes LtE in step < cuda.blockDim.x": "in one round more no thread has a partner",
    },
    "ex04_6": {"line 1: 1 more in 32": ROOM},
    "ex04_8": {"line 6: 1 less in 0": "total has one element, which -1 names as well"},
    "ex04_9": {"line 3: 1 less in 1": "the last sum is 1, above every u, so the search never gets past it"},
    "ex05_3": {
        "line 4: 1 more in 0": FREE_START,
        "line 4: 1 less in 0": FREE_START,
        "line 5: 1 more in 0": FREE_START,
        "line 5: 1 less in 0": FREE_START,
    },
    "ex06_1": {"line 2: 1 more in 16": "partners 17, 8, 4, 2 and 1 away reach all 32 lanes too"},
    "ex06_3": {
        "line 14: 1 more in 0": "lane 1 writes the row instead of lane 0; one lane does",
        "line 3: 1 more in 0": "all scores grow by the same number, which a softmax does not see",
        "line 3: 1 less in 0": "all scores shrink by the same number, which a softmax does not see",
    },
    "ex06_2": {
        "line 1: 1 more in 16": "partners 17, 8, 4, 2 and 1 away reach all 32 lanes too",
        **{f"line {line}: 1 {change} in 0": EMPTY for line in (6, 7) for change in ("more", "less")},
    },
}
