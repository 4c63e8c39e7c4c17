"""Draws docs/matrix.json as docs/matrix.svg: `python -m matrix.draw`."""

import io
import itertools

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.patches import Polygon, Rectangle

from matrix.run import PATCHES, PICTURE, read, releases, stamp

#: Stand-ins for colours that a style sheet sets, so that they follow the reader's light or dark mode.
INK, PAPER, QUIET = "#010203", "#fdfefc", "#a0a1a2"
STYLE = """<style>
svg { --ink: #1f2328; --paper: #ffffff; --quiet: #d8dce1 }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --paper: #0d1117; --quiet: #343b44 } }
</style>"""
#: Okabe and Ito's vermilion and blue, which people with any kind of colour vision tell apart.
BROKEN, FIXED = "#d55e00", "#0072b2"
COLUMNS = 2


def draw(matrix):
    """Return the SVG text of the picture."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "matrix", "font.size": 8, "font.family": "sans-serif"})
    for name in ("text.color", "axes.edgecolor", "xtick.color", "ytick.color"):
        mpl.rcParams[name] = INK
    columns = list(releases()["releases"])
    environments = list(matrix["environments"])
    rows = -(-len(environments) // COLUMNS)
    figure, axes = plt.subplots(
        rows,
        COLUMNS,
        figsize=(10.4, 0.75 + 3.0 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
        facecolor=PAPER,
    )
    for axis, name in itertools.zip_longest(axes.flat, environments):
        if name is None:
            axis.remove()
            continue
        _frame(axis, columns, _title(name, matrix["environments"][name]))
        for cell in matrix["cells"]:
            if cell["environment"] == name:
                place = columns.index(cell["megatron-core"]), list(PATCHES).index(cell["patch"])
                _cell(axis, *place, cell["outcome"], seed="seed" in cell)
    figure.legend(
        handles=[Rectangle((0, 0), 1, 1, label=label) for label in LEGEND],
        loc="outside upper center",
        ncols=len(LEGEND),
        frameon=False,
        handler_map={Rectangle: _Sample()},
        handlelength=1.0,
        handleheight=1.0,
    )
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Title": "Which megatron-core release has which bug"})
    plt.close(figure)
    return _dressed(text.getvalue())


#: What the samples of the legend say -> what they show.
LEGEND = {
    "broken without us (upper left), fixed with us (lower right)": "fixed",
    "not affected": "not affected",
    "another bug, fixed too": "another bug",
    "cannot run here": "cannot run",
    "where the project began": "seed",
}


class _Sample:
    """Draws a sample of the legend as the cells are drawn."""

    def legend_artist(self, _legend, handle, _fontsize, box):
        artists = []

        def add(artist):
            artist.set_transform(box.get_transform())
            box.add_artist(artist)
            artists.append(artist)

        outcome = LEGEND[handle.get_label()]
        size = box.height
        for shape in _shapes("fixed" if outcome == "seed" else outcome, seed=outcome == "seed"):
            shape.set_xy(_scaled(shape, size))
            if isinstance(shape, Rectangle):
                shape.set(width=shape.get_width() * size, height=shape.get_height() * size)
            add(shape)
        return artists[0]


def _scaled(shape, size):
    # Row numbers of the panels grow downwards, coordinates of the legend upwards.
    if isinstance(shape, Rectangle):
        return shape.get_x() * size, (1 - shape.get_y() - shape.get_height()) * size
    return [(x * size, (1 - y) * size) for x, y in shape.get_xy()[:-1]]


def _frame(axis, columns, title):
    axis.set(xlim=(0, len(columns)), ylim=(len(PATCHES), 0), facecolor=PAPER)
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_xticks([number + 0.5 for number in range(len(columns))], columns, rotation=90, fontsize=7)
    axis.set_yticks([number + 0.5 for number in range(len(PATCHES))], list(PATCHES), fontsize=7.5)
    axis.tick_params(length=0, labelbottom=True)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _title(name, versions):
    npu = f" and torch-npu {versions['torch-npu']} on a stub driver" if name == "npu" else ""
    return f"torch {versions['torch'].partition('+')[0]}{npu}, Python {versions['python'].rpartition('.')[0]}"


def _cell(axis, column, row, outcome, *, seed):
    for shape in _shapes(outcome, seed=seed):
        if isinstance(shape, Rectangle):
            shape.set_xy((shape.get_x() + column, shape.get_y() + row))
        else:
            shape.set_xy([(x + column, y + row) for x, y in shape.get_xy()[:-1]])
        axis.add_patch(shape)


def _shapes(outcome, *, seed=False):
    """Yield what stands for an outcome, in a unit square whose y axis points down."""
    low, high = 0.08, 0.92
    side = high - low
    if outcome == "fixed":
        yield Polygon([(low, high), (low, low), (high, low)], closed=True, facecolor=BROKEN)
        yield Polygon([(low, high), (high, low), (high, high)], closed=True, facecolor=FIXED)
    elif outcome == "not affected":
        yield Rectangle((low, low), side, side, facecolor=QUIET)
    elif outcome == "another bug":
        yield Rectangle((low, low), side, side, facecolor=QUIET)
        yield Rectangle((0.35, 0.35), 0.3, 0.3, facecolor=FIXED)
    elif outcome == "cannot run":
        yield Rectangle(
            (low + 0.04, low + 0.04), side - 0.08, side - 0.08, facecolor="none", edgecolor=INK, linewidth=0.6
        )
    else:  # a patch that does not help, or harms
        yield Rectangle((low, low), side, side, facecolor=BROKEN, edgecolor=INK, linewidth=1.2)
    if seed:
        yield Rectangle((low, low), side, side, facecolor="none", edgecolor=INK, linewidth=1.6)


def _dressed(svg):
    for stand_in, name in ((INK, "ink"), (PAPER, "paper"), (QUIET, "quiet")):
        svg = svg.replace(stand_in, f"var(--{name})")
    head, tag, rest = svg.partition("<svg ")
    attributes, end, body = rest.partition(">")
    return f"{head}<!-- {stamp()} -->\n{tag}{attributes}{end}\n{STYLE}{body}"


if __name__ == "__main__":
    PICTURE.write_text(draw(read()))
