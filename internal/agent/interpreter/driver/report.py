"""How an exception is told: name, value, traceback with the cell's own lines."""
import sys
import traceback

VALUE_MAX = 64 * 1024
K = kernel.K

RED, GREEN, BOLD, OFF = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


def text_of(value):
    """str(value), whatever its __str__ does, cut."""
    if value is None:
        return ""
    try:
        text = kernel.clean(str(value))
    except Exception as e:
        return "<%s object: its str raised %s>" % (type(value).__name__, type(e).__name__)
    return cut(text, VALUE_MAX)


def cut(text, limit):
    if len(text) <= limit:
        return text
    half = limit // 2
    return "%s\n... [%d characters left out] ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


def describe(e):
    name = type(e).__name__
    value = text_of(e)
    if isinstance(e, MemoryError) and not value:
        value = "out of memory: a limit of the sandbox or of the interpreter was reached"
    try:
        trace = format_trace(e)
    except Exception as other:
        trace = "%s: %s\n(no traceback: %s)" % (name, value, type(other).__name__)
    return {"name": name, "value": value, "traceback": cut(trace, kernel.TEXT_MAX)}


def format_trace(e):
    full = traceback.TracebackException(type(e), e, user_part(e.__traceback__))
    drop_ours(full, set())
    return "".join(colour(line) for line in full.format()).rstrip("\n")


def drop_ours(full, seen):
    """Take our frames out of an exception and those that led to it."""
    if full is None or id(full) in seen:
        return
    seen.add(id(full))
    if full.stack is not None:
        full.stack[:] = [f for f in full.stack if not f.filename.startswith(K.here)]
    for other in [full.__cause__, full.__context__] + list(getattr(full, "exceptions", None) or ()):
        drop_ours(other, seen)


def user_part(tb):
    """The traceback without our frames and the event loop's above the cell."""
    first = tb
    while first is not None and not first.tb_frame.f_code.co_filename.startswith("<cell "):
        first = first.tb_next
    if first is not None:
        return first
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(K.here):
        tb = tb.tb_next
    return tb


def colour(line):
    if line.startswith("  File "):
        head, sep, rest = line.partition("\n")
        return GREEN + head.replace('File "<cell ', 'Cell "<cell ', 1) + OFF + sep + rest
    if line and not line[0].isspace() and not line.startswith(("Traceback ", "During ", "The above ")):
        name, sep, rest = line.partition(":")
        return BOLD + RED + name.rstrip("\n") + OFF + ("\n" if name.endswith("\n") else "") + sep + rest
    return line
