"""Rich results: the pictures and texts that an object offers of itself."""
import builtins
import os
import sys

K = kernel.K
TEXT_MAX, RESULT_MAX = kernel.TEXT_MAX, kernel.RESULT_MAX
ITEMS_MAX = 1000
DEPTH_MAX = 40

REPRS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def is_json(mime):
    return mime == "application/json" or mime.endswith("+json") or mime.startswith("e2b/")


# --- text -----------------------------------------------------------------


class Full(Exception):
    """The text is long enough."""


def safe_repr(value):
    """repr(value), bounded, and never an exception (but an interrupt)."""
    out = []
    try:
        write_repr(value, out, [TEXT_MAX], set(), 0)
    except Full:
        out.append(" ... [cut: only the first %d KB are shown; print a part, or write it to a file]" % (TEXT_MAX // 1024))
    except Exception as e:
        return "<%s object: its repr raised %s: %s>" % (type(value).__name__, type(e).__name__, part_text(e))
    return "".join(out)


def part_text(e):
    return kernel.part("report").text_of(e)[:500]


def write_repr(v, out, left, above, depth):
    kind = type(v)
    opening = BRACKETS.get(kind)
    if opening is not None and depth < DEPTH_MAX:
        if id(v) in above:
            return put("%s...%s" % opening, out, left)
        above.add(id(v))
        write_items(v, kind, opening, out, left, above, depth)
        above.discard(id(v))
    elif kind in (str, bytes, bytearray) and len(v) > left[0]:
        put(repr(v[:left[0]]), out, left)
        raise Full
    else:
        text = repr(v)
        put(text if type(text) is str else str.__str__(text), out, left)


BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}"), frozenset: ("frozenset({", "})")}


def write_items(v, kind, brackets, out, left, above, depth):
    if not v and kind in (set, frozenset):
        return put("set()" if kind is set else "frozenset()", out, left)
    put(brackets[0], out, left)
    n = 0
    for item in v.items() if kind is dict else v:
        if n:
            put(", ", out, left)
        if n >= ITEMS_MAX:
            put("... %s more items" % format(len(v) - n, ","), out, left)
            break
        n += 1
        if kind is dict:
            write_repr(item[0], out, left, above, depth + 1)
            put(": ", out, left)
            item = item[1]
        write_repr(item, out, left, above, depth + 1)
    put(",)" if kind is tuple and len(v) == 1 else brackets[1], out, left)


def put(text, out, left):
    if len(text) > left[0]:
        out.append(text[:left[0]])
        raise Full
    out.append(text)
    left[0] -= len(text)


# --- bundles --------------------------------------------------------------


def bundle(value):
    """All that can be shown of value, by MIME type; bounded."""
    data = {}
    kind = type(value)
    method = getattr(kind, "_repr_mimebundle_", None)
    if callable(method):
        add_bundle(data, call(method, value, True))
    for name, mime in REPRS:
        if mime in data or mime == "image/jpeg" and "image/png" in data:
            continue
        method = getattr(kind, name, None)
        if callable(method):
            add(data, mime, call(method, value))
    if is_figure(kind) and "image/png" not in data and id(value) not in K.shown:
        if K.plots is not None:
            data.update(K.plots.picture(value))
    if is_frame(kind):
        add_table(data, value)
    if "text/plain" not in data:
        text = safe_repr(value)
        data["text/plain"] = unquote(text) if isinstance(value, str) else text
    return bounded(data)


def call(method, value, mimebundle=False):
    try:
        return method(value, include=None, exclude=None) if mimebundle else method(value)
    except NotImplementedError:
        return None
    except Exception as e:
        print("%s of %s raised %s: %s" % (getattr(method, "__name__", "display"), type(value).__name__, type(e).__name__, part_text(e)), file=sys.stderr)
        return None


def unquote(text):
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def add_bundle(data, found):
    if isinstance(found, tuple) and found:
        found = found[0]
    if isinstance(found, dict):
        for mime, content in found.items():
            if isinstance(mime, str):
                add(data, mime, content)


def add(data, mime, content):
    """Take what an object says of itself, if it can be that."""
    if isinstance(content, tuple) and content:
        content = content[0]  # (data, metadata)
    if content is None:
        return
    if is_json(mime):
        text = to_json(content)
        if text is not None:
            data[mime] = kernel.Raw(text)
    elif isinstance(content, (bytes, bytearray, memoryview)):
        from binascii import b2a_base64

        data[mime] = b2a_base64(content, newline=False).decode("ascii")
    elif isinstance(content, str):
        data[mime] = str.__str__(content)


def to_json(content):
    import json

    try:
        return json.dumps(content, allow_nan=False, default=plain)
    except Exception:
        pass
    try:
        return json.dumps(finite(content, 0), allow_nan=False, default=plain)
    except Exception:
        return None


def plain(value):
    """What JSON has no form for: numbers of numpy, dates, the rest as text."""
    item = getattr(type(value), "item", None)
    if callable(item):
        return finite(item(value), 0)
    return str(value)


def finite(v, depth):
    if isinstance(v, float):
        return v if v - v == 0 else None
    if depth < DEPTH_MAX and isinstance(v, dict):
        return {str(k): finite(x, depth + 1) for k, x in v.items()}
    if depth < DEPTH_MAX and isinstance(v, (list, tuple)):
        return [finite(x, depth + 1) for x in v]
    return v


def bounded(data):
    """Drop what is too big for a result and say so in its text."""
    text = data.get("text/plain")
    if text is not None and len(text) > 2 * TEXT_MAX:
        data["text/plain"] = text[:TEXT_MAX] + " ... [cut]"
    sizes = {mime: len(c) if c.isascii() else len(kernel.quote(kernel.clean(c))) for mime, c in data.items()}
    notes = []
    while sum(sizes.values()) > RESULT_MAX:
        mime = max(sizes, key=sizes.get)
        size = sizes.pop(mime)
        del data[mime]
        notes.append("[%s of %.1f MB left out: results hold up to %d MB; write it to a file instead]" % (mime, size / 1e6, RESULT_MAX >> 20))
    if notes:
        data["text/plain"] = "\n".join(([data["text/plain"]] if "text/plain" in data else []) + notes)
    return data


# --- pandas and matplotlib, by their names --------------------------------


def is_a(kind, module, name):
    return any(c.__name__ == name and c.__module__.startswith(module) for c in kind.__mro__ if isinstance(c.__module__, str))


def is_figure(kind):
    return "matplotlib" in sys.modules and is_a(kind, "matplotlib.figure", "Figure")


def is_frame(kind):
    return "pandas" in sys.modules and is_a(kind, "pandas.", "DataFrame")


def add_table(data, frame):
    """E2B's `data`: the columns as lists; only of tables that are small."""
    try:
        if frame.size > 20000:
            return
        columns = frame.to_dict(orient="list")
        text = to_json({str(k): list(v) for k, v in columns.items()})
    except Exception:
        return
    if text is not None and len(text) < 1 << 20:
        data["e2b/data"] = kernel.Raw(text)


# --- display() ------------------------------------------------------------


def display(*values, raw=False, **options):
    if os.getpid() != K.pid:
        for v in values:
            print(safe_repr(v))
        return
    for v in values:
        if raw and isinstance(v, dict):
            data = {}
            add_bundle(data, v)
            data = bounded(data)
        else:
            data = bundle(v)
        kernel.flush_user()
        if data:
            kernel.send({"type": "display", "id": K.id, "main": False, "data": data})


# --- what takes the place of IPython where it is not installed ------------


class DisplayObject:
    mime = "text/plain"
    binary = False

    def __init__(self, data=None, url=None, filename=None, **options):
        if filename is None and url is None and not self.binary and isinstance(data, os.PathLike):
            data, filename = None, data
        if filename is not None:
            with open(filename, "rb" if self.binary else "r") as f:
                data = f.read()
        self.data, self.url, self.filename, self.options = data, url, filename, options

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: self.data, "text/plain": repr(self)}

    def __repr__(self):
        return "<IPython.core.display.%s object>" % type(self).__name__


def kind_of(name, mime):
    return type(name, (DisplayObject,), {"mime": mime, "__module__": "IPython.core.display"})


class Image(DisplayObject):
    binary = True

    def __init__(self, data=None, url=None, filename=None, **options):
        if isinstance(data, (str, os.PathLike)) and filename is None and url is None:
            text = os.fspath(data)
            if text.startswith(("http://", "https://")):
                data, url = None, text
            else:
                data, filename = None, text
        super().__init__(data, url, filename, **options)

    def _repr_mimebundle_(self, include=None, exclude=None):
        if self.data is None:
            return {"text/html": '<img src="%s"/>' % self.url, "text/plain": repr(self)}
        head = bytes(self.data[:8])
        mime = "image/png"
        if head.startswith(b"\xff\xd8"):
            mime = "image/jpeg"
        elif head.startswith(b"GIF8"):
            mime = "image/gif"
        return {mime: self.data, "text/plain": repr(self)}


class IFrame(DisplayObject):
    def __init__(self, src, width="100%", height=400, **options):
        super().__init__('<iframe src="%s" width="%s" height="%s"></iframe>' % (src, width, height))

    mime = "text/html"


class Code(DisplayObject):
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.data}


def stub_modules():
    m = type(sys)
    top, names = m("IPython"), m("IPython.display")
    top.__doc__ = "Stand-in for IPython, which is not installed here: display() and its objects work, the shell does not exist."
    top.__path__ = []
    top.__version__ = "8.0.0"
    top.version_info = (8, 0, 0)
    top.get_ipython = lambda: None
    for name, mime in (
        ("HTML", "text/html"), ("Markdown", "text/markdown"), ("Latex", "text/latex"), ("Math", "text/latex"),
        ("SVG", "image/svg+xml"), ("JSON", "application/json"), ("Javascript", "application/javascript"),
        ("Pretty", "text/plain"), ("GeoJSON", "application/geo+json"),
    ):
        setattr(names, name, kind_of(name, mime))
    for thing in (DisplayObject, Image, IFrame, Code):
        setattr(names, thing.__name__, thing)
    names.display = kernel.display
    names.update_display = lambda value, **o: kernel.display(value)
    names.clear_output = lambda wait=False: None
    for mime, name in (("text/html", "html"), ("text/markdown", "markdown"), ("image/svg+xml", "svg"), ("image/png", "png"),
                       ("image/jpeg", "jpeg"), ("text/latex", "latex"), ("application/json", "json"),
                       ("application/javascript", "javascript"), ("text/plain", "pretty")):
        setattr(names, "display_" + name, shower(mime))
    top.display = names
    core = m("IPython.core")
    core.__path__ = []
    inner = m("IPython.core.display")
    inner.__dict__.update({k: v for k, v in names.__dict__.items() if not k.startswith("__")})
    core.display = inner
    top.core = core
    return {"IPython": top, "IPython.display": names, "IPython.core": core, "IPython.core.display": inner}


def shower(mime):
    def show(*contents, **options):
        for c in contents:
            kernel.display({mime: c}, raw=True)

    return show


STUBS = {}


class StubLoader:
    @staticmethod
    def create_module(spec):
        return STUBS[spec.name]

    @staticmethod
    def exec_module(module):
        pass


def stub_spec(name):
    if not STUBS:
        STUBS.update(stub_modules())
    if name not in STUBS:
        return None
    spec = type(builtins.__spec__)(name, StubLoader, is_package=hasattr(STUBS[name], "__path__"))
    return spec
