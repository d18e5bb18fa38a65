"""E2B's chart data: what a matplotlib figure plots, as numbers and labels."""

POINTS_MAX = 5000


def of(fig):
    """The chart of a figure, or None. Never raises. A box plot counts as its lines."""
    try:
        charts = [c for c in (chart(ax) for ax in fig.get_axes()) if c is not None]
    except Exception:
        return None
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = getattr(fig, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() if title is not None else "", "elements": charts}


def chart(ax):
    found = kind(ax)
    if found is None:
        return None
    name, elements = found
    out = {"type": name, "title": ax.get_title(), "elements": elements}
    if name == "pie":
        return out
    out["x_label"], out["y_label"] = ax.get_xlabel(), ax.get_ylabel()
    out["x_unit"], out["y_unit"] = unit(ax.get_xlabel()), unit(ax.get_ylabel())
    if name in ("line", "scatter"):
        for axis in "xy":
            out[axis + "_ticks"] = [number(t) for t in getattr(ax, "get_%sticks" % axis)()]
            labels = getattr(ax, "get_%sticklabels" % axis)()
            out[axis + "_tick_labels"] = [t.get_text() for t in labels]
            out[axis + "_scale"] = str(getattr(ax, "get_%sscale" % axis)())
    return out


def kind(ax):
    patches = list(ax.patches)
    wedges = [p for p in patches if type(p).__name__ == "Wedge"]
    if wedges:
        return "pie", [slice_of(w) for w in wedges]
    bars = [(c.get_label(), b) for c in ax.containers if type(c).__name__ == "BarContainer" for b in c]
    if bars:
        return "bar", bar_elements(ax, bars)
    lines = [l for l in ax.get_lines() if len(l.get_xdata())]
    if lines:
        return "line", [series(l.get_label(), l.get_xdata(), l.get_ydata()) for l in lines]
    dots = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
    if dots:
        return "scatter", [series(c.get_label(), *zip(*c.get_offsets())) for c in dots if len(c.get_offsets())]
    return None


def slice_of(w):
    return {"label": w.get_label(), "angle": abs(w.theta2 - w.theta1), "radius": w.r}


def bar_elements(ax, bars):
    ticks = {round(float(t), 6): l.get_text() for t, l in zip(ax.get_xticks(), ax.get_xticklabels())}
    out = []
    for group, b in bars[:POINTS_MAX]:
        middle = round(float(b.get_x() + b.get_width() / 2), 6)
        out.append({"label": ticks.get(middle) or str(middle), "value": number(b.get_height()), "group": group})
    return out


def series(label, xs, ys):
    return {"label": label, "points": [[number(x), number(y)] for x, y in list(zip(xs, ys))[:POINTS_MAX]]}


def number(v):
    if type(v).__name__ == "MaskedConstant":
        return None
    item = getattr(type(v), "item", None)
    v = item(v) if callable(item) else v
    return v if isinstance(v, (int, float, str)) else str(v)


def unit(label):
    """What stands in the last brackets of an axis label, as in `speed (m/s)`."""
    for opening, closing in ("()", "[]"):
        if label.endswith(closing) and opening in label:
            return label[label.rindex(opening) + 1:-1]
    return None
