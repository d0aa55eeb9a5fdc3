"""Mutations that a check may accept, because they change nothing that the exercise requires.

Each has been reviewed and is listed with its reason: {check: {label: reason}}.
"""

EMPTY = "a side that has read nothing has l = 0 and o = 0, so its factor is free"
ROOM = "a shared array with more room than the statement asks for"
FREE_START = "the first visit multiplies it by exp(-inf) = 0"
ONE_WRITER = "thread 1 writes the block's result instead of thread 0; one thread does"
PADDING = "what pads one tile meets the zeros that pad the other"
EITHER_ORDER = "a sum of two, in either order"
ONE_ENTRY = "an axis with one entry, which -1 names as well as 0"
SQUARE = "a tile is square, so both of its sides are as long"
MORE_ZEROS = "more zeros behind the last row or column, which nothing reads"
OTHER_TEST = "another choice of shapes, which does what the statement asks as well"
TEST_SHAPES = """parts 1 and 2 swapped in (1, 3, 4)|parts 1 and 2 swapped in (9, 3, 4)
parts 1 and 2 swapped in (10, 2, 5)|parts 2 and 3 swapped in (1, 3, 4)
parts 2 and 3 swapped in (2, 3, 4)|parts 2 and 3 swapped in (9, 3, 4)
parts 2 and 3 swapped in (10, 2, 5)|1 more in 1|1 more in 3|1 less in 3|1 more in 4|1 less in 4
1 more in 3 (2)|1 more in 4 (2)|1 less in 4 (2)|1 more in 9|1 less in 9|1 more in 3 (3)
1 less in 3 (3)|1 more in 4 (3)
1 less in 4 (3)|1 more in 10|1 less in 10|1 more in 2 (2)|1 less in 2 (2)|1 more in 5|1 less in 5"""
BLIND_TESTS = """parts 3 and 4 swapped in (16, 7, 7, 32, 32)|1 more in 16|1 more in 7|1 less in 7
1 more in 7 (2)|1 less in 7 (2)|1 more in 32|1 less in 32|1 more in 32 (2)|1 less in 32 (2)"""


def each(text, line, reason):
    """Return {label: reason} for the mutations of one line."""
    return {f"line {line}: {what}": reason for part in text.splitlines() for what in part.split("|")}


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
    "ex09_2": {f"line 5: 1 less in 0{which}": ONE_ENTRY for which in ("", " (2)")},
    "ex09_3": {
        "line 2: from 0 in range(1, len(q))": "no rows before the first token: nothing is compared",
        "line 4: arguments 1 and 2 swapped in torch.allclose(attend(*changed)[:t], before[:t])": "allclose's"
        " relative part is taken of the other side, which differs by a leak or by rounding",
    },
    "ex10_2": {f"line 3: 1 less in 0{which}": ONE_ENTRY for which in ("", " (2)")},
    "ex10_3": {
        "line 3: 1 more in 0": "the rows to load do not depend on the key",
        "line 3: 1 less in 0": "the rows to load do not depend on the key",
        "line 7: Sub becomes Add in n - j0": "keys behind the last are loaded as 0, and hidden as later ones",
        "line 14: 1 less in 0": ONE_ENTRY,
    },
    "ex10_4": {
        "line 1: 1 more in 2": OTHER_TEST,
        "line 1: 1 more in 3": OTHER_TEST,
        **each(BLIND_TESTS, 2, OTHER_TEST),
    },
    "ex11_1": {"line 5: 1 less in 1": SQUARE},
    "ex11_4": {"line 2: 1 less in 1": SQUARE},
    "ex11_5": {"line 11: arguments 1 and 2 swapped in add_values(o, shrink, s_tile, v_tile)": "a product"},
    "ex12_2": {
        **{f"line 4: 1 less in 0{which}": ONE_ENTRY for which in ("", " (2)")},
        "line 4: arguments 1 and 2 swapped in w.flip(0, 1)": "both axes are turned round",
    },
    "ex12_3": {
        "line 2: 1 less in 1 (2)": MORE_ZEROS,
        "line 2: 1 more in 0": MORE_ZEROS,
        "line 2: Sub becomes Add in c_k - 1": MORE_ZEROS,
        "line 2: Sub becomes Add in c_k - 1 - left": MORE_ZEROS,
    },
    "ex14_1": {
        "line 4: 1 more in 0": MORE_ZEROS,
        **{f"line 5: 1 less in 0{which}": ONE_ENTRY for which in ("", " (2)", " (3)")},
    },
    "ex14_2": {
        **{f"line 8: 1 less in 0{which}": ONE_ENTRY for which in ("", " (2)", " (3)")},
        "line 8: 1 more in 0 (6)": MORE_ZEROS,
    },
    "ex14_3": {
        **each(TEST_SHAPES, 1, OTHER_TEST),
        **each("1 more in 2|1 more in 4|1 less in 4", 2, OTHER_TEST),
        "line 3: Div becomes Mult in torch.randn(2, c_q, c_k) / math.sqrt(c_q * c_k)": "louder taps",
        "line 3: operands swapped in torch.randn(2, c_q, c_k) / math.sqrt(c_q * c_k)": "louder taps",
        "line 3: Mult becomes Add in c_q * c_k": "louder taps",
        "line 3: Mult becomes Div in c_q * c_k": "louder taps",
        "line 7: 1 more in 3": OTHER_TEST,
        "line 7: 1 less in 3": OTHER_TEST,
        "line 9: operands swapped in decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted": "within abs()",
        "line 11: LtE becomes Lt in error <= 1e-05": "no decoder's error is exactly 1e-5",
        "line 11: half as much in 1e-05": "right decoders here are off by far less",
        "goes round six times at most": "six splits are more than there are keys in two of the four shapes",
    },
    "ex14_4": {"line 14: 1 less in 0": ONE_ENTRY},
    "ex16_2": {"line 1: 1 more in 32": "the block has one warp"},
    "ex16_3": {
        "line 2: Add becomes Sub in 2 * u + u * u": "errors reach (2u + 3u²) / (1 + u)², which is 2u - u² + …"
    },
    "ex16_5": {
        "line 1: 1 more in 32": ROOM,
        "line 2: 1 more in 32": ROOM,
        "line 4: parts 1 and 2 swapped in (warp // 2 * 16, warp % 2 * 16)": "warps numbered by columns",
        "line 11: 1 less in 32": "the steps are 0 and 16 still",
    },
    "ex17_1": {"stops at 9 elements": "p has eight"},
    "ex17_6": {"stops at 9 elements": "t has eight"},
    "ex18_2": {"stops at 9 elements": "the first array, sums, has four"},
    "ex18_3": {
        "line 1: 1 more in 4": "a fifth number would lie in row 16, which belongs to no tap",
        "writes into sums at the end": "the lane's own, and used up",
    },
    "ex18_4": {"line 5: 1 more in 16384": "the divisor is even, so one register more changes no quotient"},
    "ex18_5": {"stops at 9 elements": "the first array, t, has four", "line 4: 1 less in 0": ONE_ENTRY},
    "ex19_2": {
        "ignores columns": "tiles of one column, which are tiles as well",
        "line 5: 1 less in 0": "the first tile begins a column earlier, at one of zeros",
    },
    "ex20_3": {
        "line 1: 1 less in 0": ONE_ENTRY,
        "line 2: sign dropped in -1": "of two axes the last is axis 1",
        "line 3: 1 less in 0": ONE_ENTRY,
    },
    "ex20_4": {
        "line 6: 1 less in 0": "in the future, where the mask writes -inf in the end",
        "line 6: Sub becomes Add in i - j": "in the future, where the mask writes -inf in the end",
    },
    "ex21_3": {"line 11: Lt becomes LtE in j < n (2)": "a causal row before n sees no key from n on anyway"},
    "ex21_5": {
        "line 7: arguments 1 and 2 swapped in tl.where(j == i + a, 1.0, 0.0)": "1.0 counts as true, and then"
        " the test itself is the number, 1 or 0"
    },
    "ex22_3": {
        "line 7: 0.0f becomes 1.0f, of for (int c = 0; c < d; c++) o_tile[t * d + c] = 0.0f;": FREE_START,
        "line 8: 0.0f becomes 1.0f, of float m = MINUS_INFINITY, l = 0.0f;": FREE_START,
        "line 9: < becomes <=, of for (int start = 0; start < n; start += columns) {": "at most one tile"
        " more, of no keys, which loads and adds nothing",
    },
    "ex23_2": {
        "line 1: parts 1 and 2 swapped in (one, other)": EITHER_ORDER,
        "line 2: arguments 1 and 2 swapped in torch.logaddexp(log_sum, other_sum)": EITHER_ORDER,
        "line 4: 1 more in 0.0": EMPTY,
    },
    "ex23_3": {"line 5: arguments 1 and 2 swapped in merge(result, attend(block))": EITHER_ORDER},
}
