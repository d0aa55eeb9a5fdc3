"""Makes figures accessible: colours that colour-blind readers can distinguish, and a description in words."""

import io

# Okabe and Ito's palette, sorted by how early a lesson should use the colour.
BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW = (
    "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #F0E442".split()
)


def show_figure(figure, words):
    """Show a matplotlib figure, followed by a description in words.

    The words are also stored in the notebook as the image's alternative text. JupyterLab 4 and nbconvert's
    default pages do not render that text, so the line below the image serves readers who cannot see it.
    """
    # imported here so that the package loads without Jupyter
    from IPython.display import Image, Markdown, display
    from matplotlib import pyplot

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=160, bbox_inches="tight")
    pyplot.close(figure)
    display(Image(png.getvalue(), alt=words, retina=True), Markdown(f"*In words:* {words}"))


def draw_squares(sizes):
    """Draw squares side by side whose areas are proportional to `sizes`, {name: bytes}."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.2), layout="constrained")
    x, sides = 0.0, [(size / 2**20) ** 0.5 for size in sizes.values()]
    room = max(sides) / 3  # minimum width for a label
    for name, side, colour in zip(sizes, sides, (BLUE, RED, GREEN)):
        middle = x + max(side, room) / 2
        axes.add_patch(pyplot.Rectangle((middle - side / 2, 0), side, side, color=colour))
        axes.text(middle, -0.02 * room, f"{name}\n{side**2:,.1f} MiB", ha="center", va="top", fontsize=12)
        x += max(side, room) + room / 4
    axes.set(xlim=(0, x), ylim=(-room / 2, max(sides) * 1.02), aspect="equal")
    axes.axis("off")
    return figure
