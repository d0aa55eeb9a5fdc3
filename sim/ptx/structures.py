"""Recognition of C++ functions that may copy structures, by the types that their text mentions.

A copy of a structure also copies its padding, the unused bits of its bit-fields, and members without a value.
The bytes of the copy are then undefined although the program is correct.
"""

import re

DECLARED = re.compile(
    r"\b(?:struct|union|class|enum)\s+(?:\w+\s*\([^()]*\)\s*)?(\w+)|\b(?:typename|using)\s+(\w+)|\}\s*(\w+)\s*;"
)
VECTOR = r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]"
# Words that can declare a structure without the name of its type, lambdas, and types of libraries.
OTHER = (
    r"\bauto\b|\bstruct\b|\bunion\b|\[[\w\s=&,*]*\]\s*\(|\w\s*::\s*\w|\b\w+\s*<[^<>;()]*>\s+\w"
    r"|\b\w*(?:half2|bfloat162)\b"
)


def names_of_structures(texts):
    """Return the names of types that may be structures: those that the source texts define, and parameters of
    their templates."""
    return {name for text in texts for found in DECLARED.findall(text) for name in found if name}


def may_copy_structures(function, texts):
    """Return whether the text of a function mentions a type that may be a structure.

    texts: the texts of the program's source files.
    """
    names = "|".join(map(re.escape, sorted(names_of_structures(texts))))
    pattern = rf"\b{VECTOR}\b|{OTHER}" + (rf"|\b(?:{names})\b" if names else "")
    return re.search(pattern, function) is not None
