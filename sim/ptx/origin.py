"""The source of a PTX module: the source lines of instructions, and the source names, which PTX mangles or
omits."""

import linecache
import os
import re
from functools import cached_property
from math import prod

import numpy as np

from sim.events import SITES, Site
from sim.frontend.outline import of_cpp, of_python
from sim.ptx.syntax import Instruction

# C++ type -> bytes per element
ITEMSIZES = {
    name: size
    for size, names in {
        1: "char int8_t uint8_t bool",
        2: "short int16_t uint16_t half __half __nv_bfloat16",
        4: "int unsigned float int32_t uint32_t",
        8: "double long int64_t uint64_t size_t float2 int2 uint2 short4 ushort4",
        16: "float4 int4 uint4 double2 longlong2 ulonglong2",
    }.items()
    for name in names.split()
}

# a vector of more than eight registers, such as the accumulators of wgmma
LONG_GROUP = re.compile(r"\{\s*([^,{}]+)(?:,[^,{}]+){7,},\s*([^,{}]+?)\s*\}")

# A part of an Itanium-mangled name: the length of an identifier, a literal, a substitution or template
# parameter, a constructor, an array or vector type, a discriminator, or any other character
MANGLED = re.compile(
    r"\d+|L[a-z]n?[\da-f]+E|[ST][\dA-Z]*_|[CD][0-5]|DF\d+[_bx]|Dv\d+_|D[a-z]|A\d+_|_\d+|.", re.DOTALL
)
OPENING = "NILXJF"  # letters that begin a nested part, which the letter E ends

# the beginning of the text of a Site whose line is that of the instruction before it
MOVED = "an instruction that the compiler moved"


class Origin:
    """The source files of one module.

    text: the Text of the module.
    source: the text of the main file. If None, the text is read from disk.
    headers: the texts of the headers included by the main file, which can declare variables.
    path: the path of the main file, if it is known. `.file` directives may contain only its name.
    """

    def __init__(self, text, source=None, headers=(), path=""):
        self.headers, self.path, self.ptx_path = headers, path, ""
        self.calls_in = {}  # name of a function -> see `calls`
        self.text, self.source_lines = text, None if source is None else source.splitlines()

    # --- lines ----------------------------------------------------------------------------------------------

    @cached_property
    def main_file(self):
        """The number of the main file. It is the first file, unless code of a header comes first."""
        names = {self.path, os.path.basename(self.path)} - {""}
        numbers = (number for number, path in sorted(self.text.files.items()) if path in names)
        return next(numbers, min(self.text.files, default=1))

    def source_line(self, file, line):
        """Return a line of a source file, or "" if it is not available."""
        if self.source_lines is not None and file == self.main_file:
            return self.source_lines[line - 1] if 0 < line <= len(self.source_lines) else ""
        return linecache.getline(self.text.files.get(file, ""), line)

    def text_at(self, location):
        """Return the source line of a location, or an empty string."""
        place = self.source_location(location)
        return self.source_line(place.file, place.line) if place else ""

    def site(self, function, item, action):
        """Return the site number of an instruction. Its line is that of its .loc directive, or else the line
        in the PTX itself.

        Compilers give line 0 to an instruction that they moved, such as a load in both arms of a branch. Its
        line is that of the nearest instruction before it.
        """
        named = item and (action.startswith("atomic") or "nc" in item.names)
        at, opcode = item or function, item.opcode if named else ""
        ptx = LONG_GROUP.sub(r"{\1, ..., \2}", " ".join(self.text.lines[at.line - 1].split()))
        place = item and self.source_location(item.location)
        moved = item and place is None and self.place_before(function, item)
        if moved:
            place, ptx = moved, f"{MOVED}: {ptx}"
        if place is None:
            name = f"{plain_name(function.name)}, PTX"
            return SITES.add(Site(action, name, at.line, 0, ptx, file=self.ptx_path, opcode=opcode))
        text, path = self.source_line(place.file, place.line), self.text.files.get(place.file, "?")
        if moved or not text.strip() and self.source_lines is None and not os.path.exists(path):
            text = ptx
        name = os.path.basename(path)
        indent = len(text) - len(text.lstrip())
        at = place.line, 0 if moved else max(place.column - 1, 0), text.strip(), indent
        calls = self.calls(function).get((place.file, place.line, place.column), ())
        file = self.file_of(place.file, path)
        return SITES.add(Site(action, name, *at, file, opcode, tuple(sorted(calls))))

    def place_before(self, function, item):
        """Return the location of the nearest instruction with a line before an instruction with line 0.

        Return None if there is none, or if the instruction has no .loc directive.
        """
        if item.location is None:
            return None
        found = None
        for other in function.body or ():
            if other is item:
                return found
            if isinstance(other, Instruction) and (place := self.source_location(other.location)):
                found = place
        return None

    def calls(self, function):
        """Return {(file, line, column) of an inlined instruction: the lines of the calls (Site.calls)}."""
        if function.name not in self.calls_in:
            found = self.calls_in[function.name] = {}
            for location in {item.location for item in function.body or () if isinstance(item, Instruction)}:
                chain = self.own_places(location)
                if len(chain) > 1:
                    place, *calls = chain
                    lines = tuple(call.line for call in calls)
                    found.setdefault((place.file, place.line, place.column), set()).add(lines)
        return self.calls_in[function.name]

    def file_of(self, number, path):
        """Return the path of a source file that exists, or "".

        number, path: the file's number and path in its .file directive.
        """
        if number == self.main_file and (self.path or self.source_lines is not None):
            return self.path
        return path if os.path.isfile(path) else ""

    def source_location(self, location):
        """Return the innermost location in the function's own file, among the locations of a chain of inlined
        calls. If there is none, return the outermost location."""
        places = self.own_places(location)
        return places[0] if places else None

    def own_places(self, location):
        """Return the locations of a chain of inlined calls that are in the function's own file, innermost
        first. If there is none, return the outermost location."""
        # `inlined` leads from the innermost location outwards.
        chain = []
        while location is not None:
            chain.append(location)
            location = location.inlined
        home = chain[-1].file if chain else None
        chain = [place for place in chain if place.line]
        return [place for place in chain if place.file == home] or chain[-1:]

    @property
    def language(self):
        """The language in which the kernel is written. The name of the compiler in the PTX header
        distinguishes Triton from Numba."""
        if not any(path.endswith(".py") for path in self.text.files.values()):
            return "C++"
        return "Triton" if any("LLVM NVPTX" in line for line in self.text.lines[:5]) else "Numba"

    def outline(self, site):
        """Return the Outline of the main file if the Site is in it, otherwise None."""
        path = self.text.files.get(self.main_file, "")
        return self.main_outline if site.function == os.path.basename(path) else None

    @cached_property
    def main_outline(self):
        """The Outline of the main file."""
        return of_cpp(self.main_text) if self.language == "C++" else of_python(self.main_text)

    # --- names ----------------------------------------------------------------------------------------------

    @property
    def main_text(self):
        """The text of the main file, or "" if it is not available."""
        if self.source_lines is not None:
            return "\n".join(self.source_lines)
        path = self.text.files.get(self.main_file, "")
        return "".join(linecache.getlines(path))

    def parameter_names(self, function):
        """Return the names of a kernel's parameters in the source. If they are not found, return argument0,
        argument1, ..."""
        parts = self.parameters(function)
        return [*map(parameter_name, parts)] or [f"argument{i}" for i in range(len(function.parameters))]

    def element_bytes(self, function):
        """Return {position: bytes per element} for the parameters declared as plain pointers in the
        source."""
        sizes = map(pointer_element_bytes, self.parameters(function))
        return {place: size for place, size in enumerate(sizes) if size}

    def parameters(self, function):
        """Return the declarations of a kernel's parameters in the source, or [] if they are not found."""
        # A template or an overload can have the same name, so the number of parameters must match too.
        count, name = len(function.parameters), re.escape(plain_name(function.name))
        for found in re.finditer(
            rf"\b{name}\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*(?:\{{|->|:)", without_comments(self.main_text)
        ):
            parts = split_parameters(found[1])
            if len(parts) == count and all(map(parameter_name, parts)):
                return parts
        return []

    def home(self, variable):
        """Return (bytes per element, shape) of a variable, according to its declaration in the source, or
        else to its alignment."""
        name = re.escape(plain_name(variable.name))
        constants = self.constants()
        text = without_comments(self.main_text)
        for found in re.finditer(rf"\b{name}\s*((?:\[[^\]]*\]\s*)+)[;={{]", text):
            # The type precedes the name. A pattern for both would take time proportional to the square of the
            # longest run of spaces.
            before = text[max(found.start() - 500, 0) : found.start()].rstrip()
            words = re.split(r"[^\w ]", before)[-1].split()
            itemsize = next((ITEMSIZES[word] for word in reversed(words) if word in ITEMSIZES), None)
            shape = [evaluate(part, constants) for part in re.findall(r"\[([^\]]*)\]", found[1])]
            if itemsize and variable.count is None:
                return itemsize, None
            if itemsize and shape.count(None) == 1:  # the shape depends on a template parameter
                known = prod(size for size in shape if size is not None) * itemsize
                shape[shape.index(None)] = variable.bytes // max(known, 1)
            if itemsize and all(shape) and prod(shape) * itemsize == variable.bytes:
                return itemsize, tuple(shape)
        size = np.dtype(f"u{min(variable.align, 8)}").itemsize if variable.align in (1, 2, 4, 8) else 4
        return (size, None) if variable.bytes % size == 0 else (1, None)

    def constants(self):
        """Return {name: text of its definition} for the integer constants in the source."""
        found = dict(re.findall(r"^\s*#\s*define\s+(\w+)\s+([^\n/]+)", self.main_text, re.M))
        return found | dict(
            re.findall(
                r"(?:constexpr|const)\s+(?:unsigned\s+|static\s+)*(?:int|size_t|unsigned)\s+(\w+)\s*=\s*([^;,]+)",
                self.main_text,
            )
        )


def evaluate(text, constants, depth=8):
    """Return the integer value of an expression in the source, or None if it cannot be evaluated.

    constants: the result of Origin.constants.
    depth: the maximum number of times that names are replaced by their definitions.
    """
    for _ in range(depth):
        text = re.sub(r"[A-Za-z_]\w*", lambda match: f"({constants.get(match[0], '?')})", text)
    if not re.fullmatch(r"[\d\s()+*/<>-]+", text):
        return None
    try:
        return int(eval(text.replace("/", "//"), {"__builtins__": {}}))
    except (SyntaxError, ArithmeticError, ValueError):
        return None


def without_comments(text):
    """Return C++ source without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def split_parameters(text):
    """Split a parameter list at its commas, except for commas in parentheses or template arguments."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def pointer_element_bytes(text):
    """Return the number of bytes per element if a C++ parameter is a pointer to numbers, otherwise None."""
    pointed, star, name = text.partition("*")
    words = re.findall(r"\w+", pointed)
    if not star or "*" in name:
        return None
    # `long long int` consists of several words.
    return 8 if "long" in words else next((ITEMSIZES[w] for w in reversed(words) if w in ITEMSIZES), None)


def parameter_name(text):
    """Return the name in the declaration of a parameter: the last word in C++, the first word in Python."""
    text = text.partition("=")[0]
    found = re.findall(
        r"[A-Za-z_]\w*", text.partition(":")[0] if ":" in text else re.sub(r"\[[^\]]*\]", "", text)
    )
    return found[-1] if found else None


def plain_name(mangled):
    """Return the name of the function or variable that an Itanium-mangled C++ name denotes, without its
    namespaces, template arguments and parameters. Return any other name unchanged."""
    if not mangled.startswith("_Z"):
        return mangled
    kind, found, opened, at, before = mangled[2:3], [], [], 2, ""
    while at < len(mangled):
        part = MANGLED.match(mangled, at)[0]
        at += len(part)
        if part.isdigit() and not (opened[-1:] == ["L"] and before != "L"):
            name = mangled[at : at + int(part)]
            at += len(name)
            if kind != "N" or opened == ["N"]:
                found.append(name)
            if kind not in "NZ":
                break
        elif part in OPENING and (part != "L" or opened and opened[-1] in "IJX"):
            opened.append(part)  # an L elsewhere marks a static function
        elif part == "E" and opened:
            opened.pop()
            if kind == "N" and not opened:
                break
        before = part
    return found[-1] if found else mangled
