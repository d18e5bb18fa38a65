"""Python kernel of the sandbox's code interpreter.

The agent starts this file with a control pipe on descriptor 3 (frames to us)
and 4 (frames to the agent): four bytes of length, big-endian, then JSON.

    agent:   run{id, code, name, env, set, unset}
    kernel:  ready{version}, display{id, main, data}, done{id, exit_code, error, cwd, threads}

Little is imported here, since a start should cost no more than `python3 -c`:
the parts beside this file are loaded when a cell first needs them.
Works with Python 3.8 and later.
"""
import builtins
import os
import sys
import _ast
import _signal
import _thread

TEXT_MAX = 256 * 1024
RESULT_MAX = 5 * 1024 * 1024
CO_COROUTINE = 0x80
NEEDS_LOOP = {"create_task", "ensure_future", "get_running_loop", "TaskGroup"}


class Kernel:
    """What the kernel knows; one instance, K."""

    here = os.path.dirname(os.path.abspath(__file__))
    pid = os.getpid()
    user = None  # the module __main__ of the cells
    fd_in, fd_out = 3, 4
    fd_saved = ()  # copies of stdout and stderr
    stdio_id = ()
    id = 0  # of the running cell
    running = False  # a cell may be interrupted now
    sending = False  # a frame is half written: interrupt afterwards
    pending = False
    lock = _thread.allocate_lock()
    sources = {}  # cell name to text
    future = 0  # flags of `from __future__` so far
    loop = None
    plots = None  # set by the matplotlib hook
    shown = set()  # ids of figures that this cell showed
    kept = []  # and the figures
    parts = {}
    cwd = "/"
    site_dirs = ()
    site_seen = {}


K = Kernel()


def part(name):
    """The driver file of that name, loaded on first use."""
    mod = K.parts.get(name)
    if mod is None:
        path = os.path.join(K.here, name + ".py")
        mod = type(sys)("_abx_" + name)
        mod.__file__ = path
        mod.kernel = sys.modules["_abx_kernel"]
        with open(path, "rb") as f:
            code = compile(f.read(), path, "exec", dont_inherit=True)
        exec(code, mod.__dict__)
        K.parts[name] = mod
    return mod


# --- frames ---------------------------------------------------------------

try:
    from _json import encode_basestring_ascii as quote, make_scanner

    class _Scan:
        strict, object_hook, object_pairs_hook = False, None, None
        parse_float, parse_int, parse_constant = float, int, None
        memo = {}

    _scan = make_scanner(_Scan)

    def decode(text):
        return _scan(text, 0)[0]

except (ImportError, AttributeError, TypeError):
    import json

    quote, decode = json.dumps, json.loads


class Raw(str):
    """A string that is JSON already."""


def clean(s):
    """s as a plain str that can be encoded: lone surrogates become escapes."""
    s = str.__str__(s)
    return s if s.isascii() else s.encode("utf-8", "backslashreplace").decode("utf-8")


def encode(o):
    if isinstance(o, Raw):
        return str.__str__(o)
    if isinstance(o, str):
        return quote(clean(o))
    if o is None or o is True or o is False:
        return {None: "null", True: "true", False: "false"}[o]
    if isinstance(o, int):
        return int.__repr__(o)
    if isinstance(o, dict):
        return "{" + ",".join(quote(clean(k)) + ":" + encode(v) for k, v in o.items()) + "}"
    return "[" + ",".join(encode(v) for v in o) + "]"


def send(frame):
    """Write one frame whole. An interrupt meanwhile is raised afterwards."""
    if os.getpid() != K.pid:
        return
    data = encode(frame).encode("ascii")
    data = memoryview(len(data).to_bytes(4, "big") + data)
    main = _thread.get_ident() == K.thread
    if main:
        K.sending = True
    try:
        with K.lock:
            while data:
                data = data[os.write(K.fd_out, data):]
    finally:
        if main:
            K.sending = False
    if main and K.pending:
        K.pending = False
        if K.running:
            raise KeyboardInterrupt


def receive():
    n = int.from_bytes(read_exact(4), "big")
    return decode(read_exact(n).decode("utf-8", "surrogatepass"))


def read_exact(n):
    chunks = []
    while n:
        b = os.read(K.fd_in, min(n, 1 << 20))
        if not b:
            raise EOFError
        chunks.append(b)
        n -= len(b)
    return b"".join(chunks)


def wait():
    """The next frame. The event loop, once there is one, runs meanwhile."""
    loop = K.loop
    if loop is None or loop.is_closed():
        return receive()
    ready = loop.create_future()
    loop.add_reader(K.fd_in, lambda: ready.done() or ready.set_result(None))
    while not ready.done():
        try:
            loop.run_until_complete(ready)
        except (SystemExit, KeyboardInterrupt):
            continue  # of a task in the background
        except RuntimeError:
            if loop.is_closed():
                break
    if not loop.is_closed():
        loop.remove_reader(K.fd_in)
    return receive()


# --- life of a cell -------------------------------------------------------


def on_interrupt(signum, frame):
    if os.getpid() != K.pid:
        raise KeyboardInterrupt  # a fork of ours: as in any program
    if K.sending:
        K.pending = True
    elif K.running:
        raise KeyboardInterrupt


def after_fork():
    """In a child of os.fork: it must not speak for the kernel."""
    K.lock = _thread.allocate_lock()
    K.sending = False
    for fd in (K.fd_in, K.fd_out) + K.fd_saved:
        try:
            os.close(fd)
        except OSError:
            pass


def compile_cell(source, name):
    """Code objects of a cell; the last one may be an expression to show."""
    flags = _ast.PyCF_ONLY_AST | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | K.future
    try:
        tree = compile(source, name, "exec", flags, True)
    except SyntaxError as e:
        tree, source = part("magic").rescue(source, name, flags, e)
    remember(name, source)
    flags &= ~_ast.PyCF_ONLY_AST
    body = tree.body
    expr = None
    if body and isinstance(body[-1], _ast.Expr) and not ends_in_semicolon(source, body[-1]):
        expr = _ast.Expression(body.pop().value)
    codes = []
    if body:
        codes.append(compile(tree, name, "exec", flags, True))
        if "__future__" in source:
            K.future |= codes[0].co_flags & future_mask()
            flags |= K.future
    if expr is not None:
        codes.append(compile(expr, name, "eval", flags, True))
    return codes, expr is not None


def future_mask():
    import __future__ as f

    mask = 0
    for name in f.all_feature_names:
        mask |= getattr(f, name).compiler_flag
    return mask & ~CO_COROUTINE & ~0x10  # `nested_scopes` shares CO_NESTED


def ends_in_semicolon(source, node):
    if ";" not in source:
        return False
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rest = lines[node.end_lineno - 1].encode("utf-8", "replace")[node.end_col_offset:]
    return rest.strip().startswith(b";")


def remember(name, source):
    """Keep the text of a cell for tracebacks and inspect.getsource."""
    K.sources[name] = source
    if len(K.sources) > 2000:
        del K.sources[next(iter(K.sources))]
    cache = sys.modules.get("linecache")
    if cache is not None:
        fill_linecache(cache)


def fill_linecache(cache):
    for name, source in K.sources.items():
        if name not in cache.cache:
            lines = [l + "\n" for l in source.split("\n")]
            cache.cache[name] = (len(source), None, lines, name)


def execute(codes):
    """Run the code objects; the value of the last. Awaits run on our loop."""
    ns = K.user.__dict__
    if not needs_loop(codes):
        value = None
        for code in codes:
            value = eval(code, ns)
        return value

    async def cell():
        value = None
        for code in codes:
            value = eval(code, ns)
            if code.co_flags & CO_COROUTINE:
                value = await value
        return value

    return on_loop(cell())


def needs_loop(codes):
    for code in codes:
        if code.co_flags & CO_COROUTINE:
            return True
        names = code.co_names
        if not NEEDS_LOOP.isdisjoint(names) and "run" not in names and "run_until_complete" not in names:
            return True
    return False


def on_loop(coroutine):
    import asyncio

    if K.loop is None or K.loop.is_closed():
        K.loop = asyncio.new_event_loop()
    loop = K.loop
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            try:
                loop.run_until_complete(asyncio.wait([task], timeout=2))
            except BaseException:
                pass
        if task.done() and not task.cancelled():
            task.exception()  # seen: no "never retrieved" later
        raise


def run(msg, end):
    """Run one cell and fill in how it ended."""
    try:
        prepare(msg)
        codes, has_value = compile_cell(msg["code"], msg["name"])
        value = execute(codes)
        if os.getpid() != K.pid:
            leave_fork(0)
        if has_value and value is not None:
            show(value, True)
    except SystemExit as e:
        if os.getpid() != K.pid:
            leave_fork(exit_code(e.code))
        end["exit_code"] = exit_code(e.code)
        if end["exit_code"]:
            end["error"] = {"name": "SystemExit", "value": part("report").text_of(e.code), "traceback": ""}
    except BaseException as e:
        error = part("report").describe(e)
        if os.getpid() != K.pid:
            os.write(2, (error["traceback"] + "\n").encode("utf-8", "replace"))
            leave_fork(1)
        end["exit_code"] = 130 if isinstance(e, KeyboardInterrupt) else 1
        end["error"] = error
    if K.plots is not None:
        K.plots.flush()


def exit_code(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    try:
        print(code, file=sys.stderr)
    except Exception:
        pass
    return 1


def leave_fork(code):
    flush()
    os._exit(code)


def serve(msg):
    """Run a cell, whatever it does, and report how it ended."""
    end = {"type": "done", "id": msg["id"], "exit_code": 0, "error": None}
    K.id = msg["id"]
    K.pending = False
    threads = _thread._count()
    saved = None
    try:
        saved = set_env(msg.get("env"))
        K.running = True
        try:
            run(msg, end)
            flush()
        finally:
            K.running = False
    except BaseException as e:
        # Between two statements of ours, or a second interrupt in the first's report.
        K.running = False
        if os.getpid() != K.pid:
            os._exit(1)
        end["exit_code"] = 130 if isinstance(e, KeyboardInterrupt) else 1
        end["error"] = end["error"] or {"name": type(e).__name__, "value": "", "traceback": type(e).__name__}
    restore_env(saved)
    flush()
    end["threads"] = max(0, _thread._count() - threads)
    end["cwd"] = where()
    K.shown.clear()
    K.kept.clear()
    K.id = 0
    send(end)


def flush_user():
    for stream in (sys.stdout, sys.stderr, K.stdout, K.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def flush():
    flush_user()
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:  # there may be C code that prints
        try:
            ctypes.pythonapi.fflush(None)
        except Exception:
            pass


def where():
    try:
        K.cwd = os.getcwd()
    except OSError:
        try:
            gone = os.readlink("/proc/self/cwd")
            K.cwd = gone[:-10] if gone.endswith(" (deleted)") else gone
        except OSError:
            pass
    return K.cwd


# --- what a cell before may have broken -----------------------------------


def prepare(msg):
    _signal.signal(_signal.SIGINT, on_interrupt)
    repair_stdio()
    repair_cwd()
    for key, value in (msg.get("set") or {}).items():
        os.environ[key] = value
    for key in msg.get("unset") or ():
        os.environ.pop(key, None)
    if msg.get("dir"):
        try:
            os.chdir(msg["dir"])
        except OSError:
            pass
    refresh_path()


def set_env(env):
    """Set the variables of one call; what restore_env needs to undo it."""
    saved = {}
    for key, value in (env or {}).items():
        saved[key] = os.environ.get(key)
        os.environ[key] = value
    return saved


def restore_env(saved):
    for key, value in (saved or {}).items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def repair_stdio():
    for i, (fd, copy) in enumerate(zip((1, 2), K.fd_saved)):
        try:
            st = os.fstat(fd)
            same = (st.st_dev, st.st_ino) == K.stdio_id[i]
            if same and not os.get_blocking(fd):
                os.set_blocking(fd, True)  # a child such as node leaves it so
        except OSError:
            same = False
        if not same:
            os.dup2(copy, fd)
    try:
        os.fstat(0)
    except OSError:
        fd = os.open(os.devnull, os.O_RDONLY)
        if fd != 0:
            os.dup2(fd, 0)
            os.close(fd)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        ours = getattr(K, name)
        if ours.closed:
            ours = open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(K, name, ours)
            setattr(sys, "__" + name + "__", ours)
        now = getattr(sys, name, None)
        if now is None or getattr(now, "closed", False):
            setattr(sys, name, ours)


def repair_cwd():
    try:
        os.getcwd()
    except OSError:
        path = K.cwd
        while True:
            path = os.path.dirname(path)
            try:
                os.chdir(path)
            except OSError:
                if path != "/":
                    continue
            break
        print("the working folder %s is gone; now in %s" % (K.cwd, path), file=sys.stderr)


def refresh_path():
    """Make packages importable that were installed since the last cell."""
    cache = sys.path_importer_cache
    for path, finder in list(cache.items()):
        if finder is None:
            del cache[path]  # was no folder then
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    metadata = sys.modules.get("importlib.metadata")
    if metadata is not None:
        try:
            metadata.MetadataPathFinder().invalidate_caches()  # no class method in 3.11
        except AttributeError:
            pass
    for path in K.site_dirs:
        try:
            seen = os.stat(path).st_mtime_ns
        except OSError:
            continue
        if K.site_seen.get(path) != seen:
            K.site_seen[path] = seen
            import site

            site.addsitedir(path)  # its .pth files; the path itself is there


# --- results --------------------------------------------------------------


def show(value, main=False):
    """Send a value as a result. Plain values need no further code."""
    kind = type(value)
    if kind is int and -(1 << 256) < value < (1 << 256) or kind is float or kind is bool:
        data = {"text/plain": repr(value)}
    elif kind is str and len(value) < TEXT_MAX // 8:
        data = {"text/plain": repr(value)[1:-1]}
    else:
        data = part("display").bundle(value)
    if main:
        builtins._ = value
    if data:
        send({"type": "display", "id": K.id, "main": main, "data": data})


def display(*values, **options):
    """Show values as results of the cell, pictures and tables included."""
    part("display").display(*values, **options)


def no_input(prompt="", /):
    if prompt:
        print(prompt, flush=True)
    raise EOFError("input() has nothing to read here: no terminal is attached; put the value into the code")


class Leave:
    """exit and quit: end the cell, keep the kernel."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "Use %s() to end the cell; variables are kept" % self.name

    def __call__(self, code=None):
        raise SystemExit(code)


class Hooks:
    """Finder that acts after certain modules were imported."""

    busy = set()

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in HOOKS or name in cls.busy:
            return None
        cls.busy.add(name)
        try:
            spec = None
            for finder in sys.meta_path:
                if finder is not cls and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        break
        finally:
            cls.busy.discard(name)
        if spec is None and name.startswith("IPython"):
            return part("display").stub_spec(name)
        loader = getattr(spec, "loader", None)
        if loader is not None and not isinstance(loader, type):
            original = loader.exec_module

            def exec_module(module):
                original(module)
                HOOKS[name](module)

            loader.exec_module = exec_module
        return spec


HOOKS = {
    "linecache": fill_linecache,
    "matplotlib.pyplot": lambda m: part("plot").install(m),
    "IPython": lambda m: None,
    "IPython.display": lambda m: setattr(m, "display", display),
    "IPython.core.display_functions": lambda m: setattr(m, "display", display),
}


# --- start ----------------------------------------------------------------


def move_fd(fd, to):
    try:
        os.dup2(fd, to, inheritable=False)
    except OSError:
        to = os.dup(fd)  # not inheritable
    if fd > 2:
        os.close(fd)
    return to


def set_up_stdio():
    K.fd_in, K.fd_out = move_fd(3, 1020), move_fd(4, 1021)
    K.fd_saved = move_fd(1, 1022), move_fd(2, 1023)
    K.stdio_id = tuple((s.st_dev, s.st_ino) for s in (os.fstat(1), os.fstat(2)))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    K.stdout, K.stderr = sys.stdout, sys.stderr


def set_up_path():
    sys.path[0] = ""  # as in `python3 -c`: the working folder, not ours
    version = "python%d.%d" % sys.version_info[:2]
    dirs = ["/root/.local/lib/%s/site-packages" % version]
    site = sys.modules.get("site")
    own = site.getusersitepackages() if site is not None else None
    if own and own != dirs[0]:
        dirs.insert(0, own)
        if own not in sys.path:  # not there yet: it goes where site would put it
            at = [i for i, p in enumerate(sys.path) if p.endswith(("site-packages", "dist-packages"))]
            sys.path.insert(at[0] if at else len(sys.path), own)
        elif os.path.isdir(own):
            K.site_seen[own] = os.stat(own).st_mtime_ns
    if dirs[-1] not in sys.path:
        sys.path.append(dirs[-1])
    K.site_dirs = tuple(dirs)


def set_up():
    sys.modules["_abx_kernel"] = sys.modules["__main__"]
    K.thread = _thread.get_ident()
    K.user = sys.modules["__main__"] = type(sys)("__main__")
    K.user.__builtins__ = builtins
    set_up_stdio()
    set_up_path()
    sys.argv = [""]
    builtins.input = no_input
    builtins.exit, builtins.quit = Leave("exit"), Leave("quit")
    builtins.display = display
    sys.meta_path.insert(0, Hooks)
    os.environ.setdefault("MPLBACKEND", "agg")
    os.register_at_fork(after_in_child=after_fork)
    _signal.signal(_signal.SIGINT, on_interrupt)
    where()
    try:
        import faulthandler

        faulthandler.enable(2)
    except Exception:
        pass


def main():
    set_up()
    send({"type": "ready", "version": sys.version.split()[0]})
    while True:
        try:
            msg = wait()
        except EOFError:
            return
        serve(msg)


main()
