"""Pictures of matplotlib: each figure of a cell is shown once, then closed.

Only pyplot's public functions are used, as they were when it was imported.
"""
import io
import sys

K = kernel.K


class Plots:
    def __init__(self, pyplot):
        self.pyplot = pyplot
        self.numbers, self.figure, self.close = pyplot.get_fignums, pyplot.figure, pyplot.close

    def show(self):
        kernel.flush_user()
        for number in list(self.numbers()):
            fig = self.figure(number)
            self.close(fig)
            if id(fig) in K.shown:
                continue
            data = self.picture(fig)
            if data:
                data["text/plain"] = kernel.part("display").safe_repr(fig)
                data = kernel.part("display").bounded(data)
                kernel.send({"type": "display", "id": K.id, "main": False, "data": data})

    def flush(self):
        """At the end of a cell, also of one that failed."""
        try:
            if self.numbers():
                self.show()
        except Exception as e:
            print("figures could not be drawn: %s: %s" % (type(e).__name__, e), file=sys.stderr)

    def picture(self, fig):
        """PNG and chart data of a figure, by MIME type."""
        K.shown.add(id(fig))
        K.kept.append(fig)  # so that no other figure gets its id in this cell
        data = {}
        for options in ({"bbox_inches": "tight"}, {}):
            out = io.BytesIO()
            try:
                fig.savefig(out, format="png", **options)
            except Exception as e:
                failed = e
                continue
            kernel.part("display").add(data, "image/png", out.getvalue())
            break
        else:
            print("a figure could not be drawn: %s: %s" % (type(failed).__name__, failed), file=sys.stderr)
        chart = kernel.part("chart").of(fig)
        if chart is not None:
            kernel.part("display").add(data, "e2b/chart", chart)
        return data


def install(pyplot):
    plots = K.plots = Plots(pyplot)

    def show(*args, **options):
        """Show all open figures as pictures and close them."""
        plots.show()

    pyplot.show = show  # a function: pyplot sets attributes on it
