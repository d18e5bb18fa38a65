"""What IPython adds to Python's syntax: %magic, %%cell magic, !command, name?.

A cell is changed only at a line where Python could not parse it, so that valid
Python always means what Python says. Line numbers stay as they were.
"""
import builtins
import os
import re
import shlex
import subprocess
import sys

K = kernel.K
TRIES_MAX = 500
ASSIGN = re.compile(r"^(\s*)([A-Za-z_][\w.,\s\[\]'\"]*?=\s*)([!%])(.*)$", re.S)
PREFIX = re.compile(r"^(\s*)(!!|!|%)(.*)$", re.S)
HELP = re.compile(r"^(\s*)(?:\?{1,2}\s*([\w.]+)|([\w.]+)\s*\?{1,2})\s*$")


class UsageError(Exception):
    """A magic was used wrongly."""


# --- text -----------------------------------------------------------------


def rescue(source, name, flags, error):
    """Parse a cell that is not Python as it stands; the tree and the text."""
    text = dedent(source)
    if text.lstrip().startswith("%%"):
        text = cell_call(text)
    elif text == source:
        text = change(source, error)
    for _ in range(TRIES_MAX):
        try:
            if text is None:
                raise error
            return compile(text, name, "exec", flags, True), text
        except SyntaxError as e:
            if text is not None:
                text = change(text, e)
            if text is None:
                raise (error if text is source else e).with_traceback(None) from None
    raise error.with_traceback(None)


def dedent(source):
    """Take away the blanks that the first line begins with from all."""
    lines = source.split("\n")
    first = next((l for l in lines if l.strip()), "")
    lead = first[:len(first) - len(first.lstrip(" \t"))]
    if not lead:
        return source
    # Lines with less are inside a string, or wrong anyway.
    return "\n".join(l[len(lead):] if l.startswith(lead) else l for l in lines)


def cell_call(text):
    blank = len(text) - len(text.lstrip())
    head, _, body = text[blank:].partition("\n")
    name, _, args = head[2:].strip().partition(" ")
    return "%s__abx_magic__.cell(%r, %r, %r)" % ("\n" * text[:blank].count("\n"), name, args.strip(), body)


def change(text, error):
    """The text with the line of the error put into Python, or None."""
    if not error.lineno:
        return None
    lines = text.split("\n")
    at = min(error.lineno, len(lines)) - 1
    end = at + 1
    while end < len(lines) and lines[end - 1].endswith("\\") and lines[at].lstrip()[:1] in "!%":
        end += 1
    line = "\n".join(lines[at:end])
    new = translate(line.replace("\\\n", " "))
    if new is None:
        return None
    lines[at:end] = [new] + [""] * (end - at - 1)
    return "\n".join(lines)


def translate(line):
    m = ASSIGN.match(line)
    if m:
        lead, target, kind, rest = m.groups()
        return lead + target + (call_capture(rest) if kind == "!" else call_line(rest))
    m = PREFIX.match(line)
    if m:
        lead, kind, rest = m.groups()
        if kind == "%":
            return lead + call_line(rest)
        return lead + (call_capture(rest) if kind == "!!" else "__abx_magic__.system(%r)" % rest.strip())
    m = HELP.match(line)
    if m:
        return "%s__abx_magic__.help(%r)" % (m.group(1), m.group(2) or m.group(3))
    return None


def call_capture(rest):
    return "__abx_magic__.capture(%r)" % rest.strip()


def call_line(rest):
    name, _, args = rest.strip().partition(" ")
    return "__abx_magic__.line(%r, %r)" % (name, args.strip())


# --- commands -------------------------------------------------------------


def shell():
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def expand(text, frame):
    """Put {expression} and $name into a command, where they are known."""
    names = dict(frame.f_globals)
    names.update(frame.f_locals)

    def braces(m):
        try:
            return str(eval(m.group(1), names))
        except Exception:
            return m.group(0)

    def dollar(m):
        name = m.group(1)
        return str(names[name]) if name in names and not name.startswith("__") else m.group(0)

    text = re.sub(r"(?<![{$])\{([^{}\n]+)\}(?!\})", braces, text)
    return re.sub(r"(?<![\\$])\$([A-Za-z_]\w*)", dollar, text).replace("{{", "{").replace("}}", "}")


def run_command(argv, **options):
    kernel.flush_user()
    code = subprocess.call(argv, stdin=subprocess.DEVNULL, **options)
    K.user.__dict__["_exit_code"] = code
    kernel.refresh_path()
    return code


def script(argv, text):
    kernel.flush_user()
    code = subprocess.run(argv, input=text.encode()).returncode
    K.user.__dict__["_exit_code"] = code
    kernel.refresh_path()
    if code:
        raise subprocess.CalledProcessError(code, argv)


# --- magics ---------------------------------------------------------------


def execute(source):
    """Run source in the user's names; the value of its last expression."""
    name = "<cell %s part %d>" % (K.id, len(K.sources))
    codes, has_value = kernel.compile_cell(source, name)
    value = kernel.execute(codes)
    return value if has_value else None


def timed(source):
    import time

    cpu, wall = time.process_time(), time.perf_counter()
    try:
        return execute(source)
    finally:
        print("CPU time: %s, wall time: %s" % (span(time.process_time() - cpu), span(time.perf_counter() - wall)))


def span(seconds):
    for limit, unit, factor in ((1e-6, "ns", 1e9), (1e-3, "us", 1e6), (1, "ms", 1e3)):
        if seconds < limit:
            return "%.3g %s" % (seconds * factor, unit)
    return "%.3g s" % seconds


def timeit(args, body=""):
    import timeit as t

    m = re.match(r"\s*(?:-n\s*(\d+)\s*)?(?:-r\s*(\d+)\s*)?(.*)$", args, re.S)
    number, repeat, statement = m.groups()
    setup, statement = (statement or "pass", body) if body else ("pass", statement)
    timer = t.Timer(statement, setup, globals=K.user.__dict__)
    n = int(number) if number else max(1, timer.autorange()[0])
    runs = [r / n for r in timer.repeat(int(repeat or 5), n)]
    print("%s per loop (best of %d runs, %d loops each; mean %s)" % (span(min(runs)), len(runs), n, span(sum(runs) / len(runs))))


def change_folder(args):
    path = os.path.expanduser(args.strip("'\"") or "~")
    os.chdir(path)
    print(os.getcwd())


def environment(args):
    if not args:
        return dict(os.environ)
    name, sep, value = args.partition("=")
    if not sep:
        name, sep, value = args.partition(" ")
    if not sep:
        return os.environ.get(name.strip())
    os.environ[name.strip()] = value.strip()
    print("env: %s=%s" % (name.strip(), value.strip()))


def run_file(args):
    words = shlex.split(args)
    if not words:
        raise UsageError("%run needs a file")
    import runpy

    argv, sys.argv = sys.argv, words
    try:
        names = runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = argv
    K.user.__dict__.update({k: v for k, v in names.items() if not k.startswith("__")})


def names_of_user():
    return sorted(k for k in K.user.__dict__ if not k.startswith("_"))


def reset(args):
    for name in names_of_user():
        del K.user.__dict__[name]


def write_file(args, body):
    words = shlex.split(args)
    append = "-a" in words
    paths = [w for w in words if w not in ("-a", "--append")]
    if len(paths) != 1:
        raise UsageError("%%writefile needs one file name")
    path = os.path.expanduser(paths[0])
    with open(path, "a" if append else "w", encoding="utf-8") as f:
        f.write(body)
    print(("Appended to " if append else "Wrote ") + path)


def captured(args, body):
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        execute(body)
    if args:
        keep = type("Captured", (), {"stdout": out.getvalue(), "stderr": err.getvalue(), "__str__": lambda s: s.stdout})
        K.user.__dict__[args.split()[0]] = keep()


def pip(args):
    words = [w for w in shlex.split(args) if w not in ("-y",) or "uninstall" in args]
    if words[:1] == ["uninstall"] and "-y" not in words:
        words.insert(1, "-y")  # nobody can answer
    if run_command([sys.executable, "-m", "pip"] + words):
        print("pip ended with code %d" % K.user.__dict__["_exit_code"], file=sys.stderr)


def shown(mime):
    return lambda args, body: kernel.display({mime: body}, raw=True)


def nothing(args):
    return None


LINE = {
    "pip": pip, "cd": change_folder, "pwd": lambda a: os.getcwd(), "env": environment, "set_env": environment,
    "time": timed, "timeit": timeit, "run": run_file, "who": lambda a: print(*names_of_user(), sep="\t"),
    "whos": lambda a: print("\n".join("%s\t%s" % (n, type(K.user.__dict__[n]).__name__) for n in names_of_user())),
    "reset": reset, "sx": lambda a: run_capture(a), "system": lambda a: run_command(a, shell=True, executable=shell()),
}
for _name in ("matplotlib", "load_ext", "reload_ext", "autoreload", "config", "precision", "colors", "pylab", "xmode"):
    LINE[_name] = nothing
for _name in ("ls", "cat", "mkdir", "rmdir", "rm", "cp", "mv", "head", "tail", "touch", "uv", "conda"):
    LINE[_name] = lambda a, _c=_name: run_command(_c + " " + a, shell=True, executable=shell()) and None

CELL = {
    "bash": lambda a, b: script([shell()] + shlex.split(a), b), "sh": lambda a, b: script(["/bin/sh"] + shlex.split(a), b),
    "script": lambda a, b: script(shlex.split(a), b), "writefile": write_file, "file": write_file,
    "time": lambda a, b: timed(b), "timeit": timeit, "capture": captured,
    "python": lambda a, b: script([sys.executable] + shlex.split(a) + ["-"], b),
    "html": shown("text/html"), "markdown": shown("text/markdown"), "latex": shown("text/latex"),
    "javascript": shown("application/javascript"), "js": shown("application/javascript"), "svg": shown("image/svg+xml"),
}
CELL["python3"], CELL["HTML"], CELL["SVG"] = CELL["python"], CELL["html"], CELL["svg"]


def run_capture(command):
    kernel.flush_user()
    p = subprocess.run(command, shell=True, executable=shell(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    K.user.__dict__["_exit_code"] = p.returncode
    return p.stdout.decode("utf-8", "backslashreplace").splitlines()


def unknown(sign, name, known):
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = "did you mean %s%s?" % (sign, near[0]) if near else "known are " + ", ".join(sorted(known))
    return UsageError("%s%s is not a magic here; %s" % (sign, name, hint))


class Magic:
    """The object __abx_magic__ that translated lines call."""

    def system(self, command):
        run_command(expand(command, sys._getframe(1)), shell=True, executable=shell())

    def capture(self, command):
        return run_capture(expand(command, sys._getframe(1)))

    def line(self, name, args):
        if name not in LINE:
            raise unknown("%", name, LINE)
        if name not in ("time", "timeit"):
            args = expand(args, sys._getframe(1))
        return LINE[name](args)

    def cell(self, name, args, body):
        if name not in CELL:
            raise unknown("%%", name, CELL)
        return CELL[name](args, body)

    def help(self, name):
        import pydoc

        try:
            value = eval(name, K.user.__dict__)
        except Exception:
            print("%s is not known here" % name)
        else:
            print(pydoc.plain(pydoc.render_doc(value)))


builtins.__abx_magic__ = Magic()
