"""Sphinx settings of the site. `make docs` copies the pages into one folder and runs Sphinx on it."""

import re

project = "GPU attention kernels"
author = "the contributors"
project_copyright = "MIT licence"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = "GPU attention kernels"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
exclude_patterns = ["requirements.txt"]
pygments_style, pygments_dark_style = "a11y-light", "a11y-dark"  # contrast of at least 4.5 to 1

nb_execution_mode = "off"  # the stored outputs are shown, and tests compare them with new ones
nb_merge_streams = True
nb_code_prompt_show = "Show the solution"
nb_code_prompt_hide = "Hide the solution"
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_dmath_double_inline = True
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "myst.header"]
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False}
python_maximum_signature_line_length = 88
highlight_language = "none"
default_role = "code"


# A line "name: description" of a docstring, and the lines that continue it.
PARAMETER = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (\S.*)$")


def mark_parameters(app, what, name, thing, options, lines):
    """Turn the lines "name: description" of a docstring into a list of definitions, and the paragraphs about
    errors into a field."""
    found, number = [], 0
    while number < len(lines):
        line = lines[number]
        parameter = PARAMETER.match(line)
        before = lines[number - 1] if number else ""
        if parameter and (not before.strip() or (found and found[-1].startswith("   "))):
            if found and found[-1].strip() and not found[-1].startswith("   "):
                found.append("")
            found += [f"``{parameter[1]}``", f"   {escape_stars(parameter[2])}"]
            while number + 1 < len(lines) and lines[number + 1].startswith("    "):
                number += 1
                found.append(f"   {escape_stars(lines[number].strip())}")
        elif line.startswith("    "):  # a table or code: keep its lines
            block = [line]
            while number + 1 < len(lines) and (not lines[number + 1] or lines[number + 1].startswith("    ")):
                number += 1
                block.append(lines[number])
            found += ["", "::", "", *block, ""]
        else:
            if found and found[-1].startswith("   ") and line.strip() and not line.startswith("   "):
                found.append("")
            found.append(
                re.sub(r"^(Raise[sd]?) ((?:\w+Error|KernelBug)\b)", r"**\1** \2", escape_stars(line))
            )
        number += 1
    lines[:] = found


def escape_stars(text):
    """Return a line in which `*` and `_` outside code are text."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*|]|\w_(?=\W|$))", r"\\\1", part) for part in parts
    )


def setup(app):
    app.connect("autodoc-process-docstring", mark_parameters)
