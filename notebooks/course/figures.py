"""Figures that everybody can read: colours that colour-blind readers tell apart, and the same in words."""

import io

# Okabe and Ito's palette, in the order in which a lesson should reach for it.
BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW = (
    "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #F0E442".split()
)


def show_figure(figure, words):
    """Show a matplotlib figure, and below it the same in words.

    The words also go into the notebook as the image's alternative text. But JupyterLab 4, and the pages that
    nbconvert makes by default, show the image without it, so the line below is what a reader who cannot see
    the image gets.
    """
    # here, so that the package loads where Jupyter is missing
    from IPython.display import Image, Markdown, display
    from matplotlib import pyplot

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=160, bbox_inches="tight")
    pyplot.close(figure)
    display(Image(png.getvalue(), alt=words, retina=True), Markdown(f"*In words:* {words}"))
