"""The engine on a fake megatron-core, each test in a fresh interpreter where the start-up hook has run.

What others may do to it is in tests/hostile.
"""

import pytest
from environments import FAKE, OUTCOME

# What must not change.


def test_a_module_that_is_no_target_is_loaded_by_its_own_loader(run):
    done = run("use(patch()); import megatron.core.package_info as p; print(type(p.__spec__.loader).__name__)")
    assert done.stdout == "SourceFileLoader\n"


def test_a_target_keeps_its_loader_spec_and_source(run):
    done = run("""
use(patch())
import inspect, pickle
import megatron.core.models.model as m
from importlib.machinery import SourceFileLoader
assert type(m.__loader__) is SourceFileLoader and m.__spec__.loader is m.__loader__
assert m.__spec__.cached and m.__spec__.has_location
assert "def function" in inspect.getsource(m) and m.body == 1
pickle.dumps(m.__spec__)
print(m.function(1))
""")
    assert done.stdout == "('one', 'function', 1, 1)\n"


def test_a_spec_that_is_looked_up_without_importing_looks_like_the_real_one(run):
    done = run("""
use(patch())
import megatron.core.models, importlib.util, pickle, copy
from importlib.machinery import SourceFileLoader
spec = importlib.util.find_spec(MODEL)
assert MODEL not in sys.modules
assert isinstance(spec.loader, SourceFileLoader)
assert type(pickle.loads(pickle.dumps(spec)).loader) is SourceFileLoader
copy.deepcopy(spec), copy.copy(spec.loader)
assert "def function" in spec.loader.get_source(MODEL)
assert spec.loader.is_package(MODEL) is False
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.function(1))
""")
    assert done.stdout == "('one', 'function', 1, 1)\n"


def test_a_missing_target_raises_what_python_raises(run):
    done = run("""
use(patch(target="megatron.core.models.missing"))
try:
    import megatron.core.models.missing
except ModuleNotFoundError as error:
    print(error.name, importlib.util.find_spec("megatron.core.models.missing"))
""")
    assert done.stdout == "megatron.core.models.missing None\n"


def test_a_target_whose_body_raises_fails_as_without_us_and_waits(run):
    done = run(f"""
use(patch(target="megatron.core.models.failing"))
for _ in range(2):
    try:
        import megatron.core.models.failing
    except RuntimeError as error:
        print(error, "megatron.core.models.failing" in sys.modules)
{OUTCOME}
""")
    assert done.stdout == "the body of failing.py False\n" * 2 + "one WAITING None\n"


@pytest.mark.parametrize("package_thread", ["megatron.core.circle"])
def test_a_package_that_imports_a_target_in_a_thread_and_joins_does_not_deadlock(run, package_thread):
    done = run(f"""
use(patch(target="megatron.core.circle.target"))
import {package_thread} as package, megatron.core.circle.target as target
print(package.joined, target.function(1))
""")
    assert done.stdout == "True ('one', 'target in a thread', 1)\n"


def test_a_stand_in_module_is_never_patched(run):
    done = run(f"""
use(patch())
import types
dummy = types.ModuleType(MODEL)
dummy.function = lambda x: "dummy"
sys.modules[MODEL] = dummy
import megatron.core
print(dummy.function(1))
{OUTCOME}
""")
    assert done.stdout == "dummy\none SKIPPED STAND_IN\n"


def test_a_module_that_replaces_itself_is_not_touched(run):
    done = run(f"""
use(patch(target="megatron.core.models.replaced"))
import megatron.core.models.replaced as r
print(r.function(1))
{OUTCOME}
""")
    assert done.stdout == "('replaced', 1)\none SKIPPED STAND_IN\n"


# Ways to import.


@pytest.mark.parametrize(
    "statement",
    [
        "import megatron.core.models.model as m",
        "from megatron.core.models import model as m",
        "from megatron.core.models.model import function; m = sys.modules[MODEL]; m.function = function",
        "m = importlib.import_module(MODEL)",
        "import megatron.core; m = importlib.import_module('.models.model', 'megatron.core')",
        "__import__(MODEL); m = sys.modules[MODEL]",
        "import threading as t; t = t.Timer(0, __import__, (MODEL,)); t.start(); t.join(); m = sys.modules[MODEL]",
        "import pkgutil; m = pkgutil.resolve_name(MODEL)",
    ],
)
def test_every_way_to_import_is_patched(run, statement):
    assert run(f"use(patch()); {statement}\nprint(m.function(1, y=2))").stdout == "('one', 'function', 1, 2)\n"


def test_fifty_threads_that_import_at_once_all_get_the_patched_module(run):
    done = run("""
use(patch())
import threading
results, gate = [], threading.Barrier(50)
def load():
    gate.wait()
    results.append(importlib.import_module(MODEL).function(1))
threads = [threading.Thread(target=load) for _ in range(50)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(results), set(results), sum(f is sys.modules["_mcore_autopatch"] for f in sys.meta_path))
""")
    assert done.stdout == "50 {('one', 'function', 1, 1)} 1\n"


def test_reload_and_import_after_deletion_are_patched_again_and_once(run):
    done = run("""
use(patch())
import megatron.core.models.model as m
first = m.function
m = importlib.reload(m)
assert m.function is not first and m.body == 2
print(m.function(1))
del sys.modules[MODEL]
n = importlib.import_module(MODEL)
assert n is not m and n.body == 3
print(n.function(1), n.function.__mcore_autopatch__)
importlib.reload(importlib.reload(n))
print(n.function(1))
""")
    assert done.stdout == "('one', 'function', 1, 1)\n('one', 'function', 1, 1) ('one',)\n('one', 'function', 1, 1)\n"


def test_wrapt_hooks_of_others_on_a_target_still_fire_and_one_that_raises_aborts_the_import_as_without_us(run):
    done = run("""
use(patch())
import wrapt
calls = []
def hook(module):
    calls.append(module.__name__)
    if len(calls) == 2:
        raise ValueError("theirs")
wrapt.register_post_import_hook(hook, MODEL)
wrapt.register_post_import_hook(hook, MODEL)
try:
    import megatron.core.models.model
except ValueError as error:
    print(error, MODEL in sys.modules)
import megatron.core.models.model as m
print(len(calls), m.function(1))
""")
    assert done.stdout == "theirs False\n2 ('one', 'function', 1, 1)\n"


def test_install_patches_what_is_already_imported_and_a_second_call_does_nothing(run):
    done = run(
        f"""
use(patch())
sys.meta_path[:] = [f for f in sys.meta_path if f is not sys.modules["_mcore_autopatch"]]
import megatron.core.models.model as m
print(m.function(1), mcore_autopatch.outcomes())
assert mcore_autopatch.install() == mcore_autopatch.outcomes()
patched = m.function
mcore_autopatch.install()
assert m.function is patched
print(m.function(1), sum(f is sys.modules["_mcore_autopatch"] for f in sys.meta_path))
{OUTCOME}
"""
    )
    assert done.stdout == "('function', 1, 1) ()\n('one', 'function', 1, 1) 1\none APPLIED None\n"


def test_install_from_inside_a_target_that_is_being_executed_waits_until_called_again(run, tmp_path):
    (tmp_path / "half.py").write_text(
        "import mcore_autopatch; mcore_autopatch.install()\ndef function(x): return (x,)\n"
    )
    done = run(f"""
sys.meta_path[:] = [f for f in sys.meta_path if f is not sys.modules["_mcore_autopatch"]]
use(patch(target="half"))
sys.path.insert(0, {str(tmp_path)!r})
import megatron.core, half
print(half.function(1))
mcore_autopatch.install()
print(half.function(1))
""")
    assert done.stdout == "(1,)\n('one', 1)\n"


@pytest.mark.parametrize(
    "position", ["0", "sys.meta_path.index(importlib.machinery.PathFinder)"], ids=["first", "late"]
)
def test_other_finders_are_asked_in_their_order_with_path_and_target(run, position):
    done = run(f"""
use(patch())
import megatron.core.models
class Spy:
    seen = []
    def find_spec(self, name, path=None, target=None):
        if name == MODEL:
            self.seen.append((path is not None, target))
import importlib.machinery
sys.meta_path.insert({position}, Spy())
m = importlib.import_module(MODEL)
print(m.function(1), Spy.seen[-1])
importlib.reload(m)
print(Spy.seen[-1] == (True, m))
""")
    assert done.stdout == "('one', 'function', 1, 1) (True, None)\nTrue\n"


@pytest.mark.filterwarnings("default")
def test_a_finder_of_the_old_kind_keeps_its_turn(run):
    done = run("""
use(patch())
import megatron.core.models
class Old:
    seen = []
    def find_module(self, name, path=None):
        self.seen.append(name)
sys.meta_path.insert(1, Old())
print(importlib.import_module(MODEL).function(1), MODEL in Old.seen or sys.version_info >= (3, 12))
""")
    assert done.stdout == "('one', 'function', 1, 1) True\n"


def test_a_finder_that_raises_raises_as_without_us(run):
    done = run("""
use(patch())
import megatron.core.models
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == MODEL:
            raise LookupError("theirs")
sys.meta_path.insert(1, Broken())
try:
    importlib.import_module(MODEL)
except LookupError as error:
    print(error)
""")
    assert done.stdout == "theirs\n"


def test_a_spec_that_cannot_be_changed_is_used_as_it_is(run):
    done = run("""
use(patch())
import megatron.core.models, importlib.machinery
class Frozen(importlib.machinery.ModuleSpec):
    def __setattr__(self, name, value):
        if name == "loader" and getattr(self, "loader", None):
            raise TypeError("frozen")
        super().__setattr__(name, value)
class Finder2:
    def find_spec(self, name, path=None, target=None):
        if name == MODEL:
            real = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec = Frozen(name, real.loader, origin=real.origin)
            return spec
sys.meta_path.insert(1, Finder2())
print(importlib.import_module(MODEL).function(1)[-2:])
""")
    assert done.stdout == "(1, 1)\n"


def test_a_program_that_empties_sys_modules_can_import_again(run):
    done = run("""
use(patch())
import megatron.core.models
for name in [n for n in sys.modules if n.startswith(("mcore_autopatch", "megatron"))]:
    del sys.modules[name]
import megatron.core.models.model as m
print(m.function(1)[-2:])
""")
    assert done.stdout == "(1, 1)\n"


def test_a_lazy_loader_stays_lazy_and_the_module_is_patched_when_its_body_runs(run):
    done = run("""
use(patch())
import megatron.core.models, importlib.util, importlib.machinery
class Lazy:
    def find_spec(self, name, path=None, target=None):
        if name == MODEL:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.loader = importlib.util.LazyLoader(spec.loader)
            return spec
sys.meta_path.insert(1, Lazy())
m = importlib.import_module(MODEL)
print(getattr(sys, "fake_megatron_bodies", 0))
print(m.function(1))
""")
    assert done.stdout == "0\n('one', 'function', 1, 1)\n"


def test_wrapts_finder_comes_after_ours_and_nobody_elses_place_changes(run):
    done = run("""
use(patch())
class Theirs:
    find_spec = staticmethod(lambda name, path=None, target=None: None)
sys.meta_path.insert(0, Theirs)
import megatron.core
assert sys.meta_path.pop(0) is Theirs
assert Theirs not in sys.meta_path
print(*[type(finder).__name__ for finder in sys.meta_path][:2])
print(importlib.import_module(MODEL).function(1))
""")
    assert done.stdout == "module ImportHookFinder\n('one', 'function', 1, 1)\n"


def test_install_puts_our_finder_first(run):
    done = run("""
use(patch())
import importlib.machinery
class Greedy:
    find_spec = staticmethod(lambda *args: importlib.machinery.PathFinder.find_spec(*args))
sys.meta_path.insert(0, Greedy)
mcore_autopatch.install()
print(sys.meta_path[0].__name__, importlib.import_module(MODEL).function(1))
""")
    assert done.stdout == "_mcore_autopatch ('one', 'function', 1, 1)\n"


def test_arming_does_not_deadlock_with_a_thread_that_is_importing_what_it_imports(run, tmp_path):
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5); import colorsys")
    done = run(f"""
import threading, time
from mcore_autopatch import catalogue
sys.path.insert(0, {str(tmp_path)!r})
use(patch())
found = catalogue.load()
catalogue.load = lambda: (__import__("slow"), found)[1]
thread = threading.Thread(target=__import__, args=("slow",))
thread.start()
time.sleep(0.1)
import megatron.core.models.model as m
thread.join()
print(m.function(1))
""")
    assert done.stdout == "('one', 'function', 1, 1)\n"


def test_a_warning_in_the_body_of_a_target_blames_whoever_imports_it(run, tmp_path):
    (tmp_path / "warner.py").write_text("import warnings; warnings.warn('old', DeprecationWarning, stacklevel=2)")
    done = run(f"""
sys.path.insert(0, {str(tmp_path)!r})
use(patch(target="warner", replacements={{}}, additions={{"x": 1}}))
import megatron.core, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import warner
print(caught[0].filename, warner.x)
""")
    assert done.stdout == "<string> 1\n"


def test_the_loader_of_a_spec_is_compared_shown_and_changed_as_the_real_one(run):
    done = run("""
use(patch())
import importlib.util, megatron.core.models
from importlib.machinery import SourceFileLoader
class Mine(SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        return super().source_to_code(b"def function(x): return ('mine', x)", path)
    def get_code(self, name):
        return self.source_to_code(b"", "mine")
class Wrapping:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if name != MODEL or Wrapping.busy:
            return None
        Wrapping.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            Wrapping.busy = False
        assert spec.loader == SourceFileLoader(name, spec.origin) and "SourceFileLoader" in repr(spec.loader)
        assert spec == importlib.machinery.PathFinder.find_spec(name, path) and hash(spec.loader)
        spec.loader.__class__ = Mine
        return spec
sys.meta_path.insert(0, Wrapping())
print(importlib.import_module(MODEL).function(1))
""")
    assert done.stdout == "('one', 'mine', 1)\n"


# What is replaced, and how.


def test_each_kind_of_attribute_keeps_its_kind_name_signature_and_pickles(run):
    done = run("""
use(patch(attributes=("function", "Model.method", "Model.static", "Model.of_class")))
import inspect, pickle
import megatron.core.models.model as m
print(m.function(1), m.Model().method(2), m.Model.static(3), m.Model().static(3), m.Model.of_class(4))
assert isinstance(vars(m.Model)["static"], staticmethod) and isinstance(vars(m.Model)["of_class"], classmethod)
assert str(inspect.signature(m.function)) == "(x, *, y=1)" and m.function.__doc__ == "Say what it got."
for function in (m.function, m.Model.method, m.Model.static):
    assert pickle.loads(pickle.dumps(function)) is function
print(m.Model.static.__qualname__, m.Model.static.__module__, m.Model.static.__mcore_autopatch__)
""")
    expected = (
        "('one', 'function', 1, 1) ('one', 'method', 2) ('one', 'static', 3) ('one', 'static', 3) ('one', 'Model', 4)"
    )
    assert done.stdout == f"{expected}\nModel.static megatron.core.models.model ('one',)\n"


def test_two_patches_of_one_attribute_stack_in_the_order_of_their_ids(run):
    done = run("""
use(patch("first"), patch("second"))
import megatron.core.models.model as m
print(m.function(1), m.function.__mcore_autopatch__)
""")
    assert done.stdout == "('second', 'first', 'function', 1, 1) ('first', 'second')\n"


def test_a_replacement_wrapped_by_somebody_else_is_not_applied_again(run):
    done = run(f"""
use(patch())
import functools, megatron.core.models.model as m
ours = m.function
@functools.wraps(ours)
def theirs(*args, **kwargs):
    return ("theirs", *ours(*args, **kwargs))
m.function = theirs
mcore_autopatch.install()
print(m.function(1))
{OUTCOME}
""")
    assert done.stdout == "('theirs', 'one', 'function', 1, 1)\none APPLIED None\n"


def test_what_somebody_else_has_replaced_is_left_to_them(run):
    done = run(f"""
sys.meta_path[:] = [f for f in sys.meta_path if f is not sys.modules["_mcore_autopatch"]]
use(patch())
import megatron.core.models.model as m
theirs = {{"__name__": "vendor.patches"}}
exec("def function(x): return ('theirs', x)", theirs)
m.function = theirs["function"]
mcore_autopatch.install()
print(m.function(1), mcore_autopatch.outcomes()[0].detail)
{OUTCOME}
""")
    expected = "('theirs', 1) function has been replaced by vendor.patches\none SKIPPED ALREADY_PATCHED\n"
    assert done.stdout == expected


def test_the_probe_is_asked_also_where_the_code_to_replace_is_gone(run):
    done = run(f"""
use(patch(attributes=("Model.gone", "gone.too"), probe=lambda module: False))
import megatron.core.models.model
{OUTCOME}
""")
    assert done.stdout == "one SKIPPED BUG_ABSENT\n"


@pytest.mark.parametrize("path", ["Model.method or gone", "gone or Model.gone or Model.method or function"])
def test_the_first_of_several_names_that_is_there_is_replaced(run, path):
    done = run(f"""
use(patch(attributes=({path!r},)))
import megatron.core.models.model as m
print(m.Model().method(1), m.function(2), m.Model.method.__qualname__)
mcore_autopatch.install()
print(m.Model().method(1))
{OUTCOME}
""")
    result = "('one', 'method', 1)"
    assert done.stdout == f"{result} ('function', 2, 1) Model.method\n{result}\none APPLIED None\n"


def test_additions_are_made_where_they_are_missing_and_overwrite_nothing(run):
    done = run(f"""
use(patch(replacements={{}}, additions={{"missing": None, "body": "ours"}}))
import megatron.core.models.model as m
print(m.missing, m.body)
mcore_autopatch.install()
{OUTCOME}
""")
    assert done.stdout == "None 1\none APPLIED None\n"


EXECUTION = """
import contextlib
@contextlib.contextmanager
def execution(module):
    print("before", sorted(n for n in vars(module) if n[0] != "_"), type(module.__loader__).__name__)
    yield
    print("after", "function" in vars(module))
"""


def test_a_body_can_be_executed_inside_a_context(run):
    done = run(f"""{EXECUTION}
use(patch(replacements={{}}, execution=execution), patch("two"))
import megatron.core.models.model as m
print(m.function(1))
{OUTCOME}
importlib.reload(m)
""")
    first = "before [] SourceFileLoader\nafter True\n('two', 'function', 1, 1)\none APPLIED None; two APPLIED None\n"
    assert done.stdout.startswith(first)
    assert done.stdout.count("before") == 2


def test_a_context_is_left_but_not_told_when_the_body_raises(run):
    done = run(f"""{EXECUTION}
use(patch(replacements={{}}, execution=execution, target="megatron.core.models.failing"))
try:
    import megatron.core.models.failing
except RuntimeError as error:
    print(error)
""")
    assert done.stdout == "before [] SourceFileLoader\nafter False\nthe body of failing.py\n"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_context_that_breaks_leaves_the_import_alone(run, moment):
    done = run(
        f"""
import contextlib
@contextlib.contextmanager
def execution(module):
    if {moment!r} == "before": raise SystemExit(3)
    yield
    raise ValueError("left")
use(patch(replacements={{}}, execution=execution))
import megatron.core.models.model as m
print(m.function(1))
{OUTCOME}
""",
        stderr=None,
    )
    assert done.stdout == "('function', 1, 1)\none FAILED None\n"


def test_a_context_comes_too_late_for_a_module_that_is_loaded(run):
    done = run(f"""{EXECUTION}
sys.meta_path[:] = [f for f in sys.meta_path if f is not sys.modules["_mcore_autopatch"]]
use(patch(replacements={{}}, execution=execution))
import megatron.core.models.model as m
mcore_autopatch.install()
{OUTCOME}
""")
    assert done.stdout == "one SKIPPED BUG_ABSENT\n"


def test_a_patch_that_is_off_unless_asked_for(run):
    code = f'use(patch(opt_in="it widens something"))\nimport megatron.core.models.model as m\n{OUTCOME}'
    assert run(code).stdout == "one SKIPPED SWITCHED_OFF\n"
    assert run(code, MCORE_AUTOPATCH_ONLY="one").stdout == "one SKIPPED SWITCHED_OFF\n"
    assert run(code, MCORE_AUTOPATCH_ENABLE="one").stdout == "one APPLIED None\n"


ANNOUNCED = f"""
def breaking(original):
    def replacement(x):
        raise ValueError(f"wrong: {{x}}")
    return replacement
use(
    patch("bug", replacements={{"function": breaking}}),
    patch(opt_in="it widens something", recognised_by=r"wrong: \\d", **FIELDS),
)
import megatron.core.models.model as m
mcore_autopatch.install()
for x in (1, "other"):
    try:
        m.function(x)
    except ValueError as error:
        print(error)
{OUTCOME}
"""
HINT = (
    "mcore-autopatch: one would have prevented this (t). "
    "It is off unless MCORE_AUTOPATCH_ENABLE=one asks for it: it widens something\n"
)


def test_a_patch_that_nobody_has_asked_for_is_named_once_when_the_bug_strikes(run):
    done = run(f"FIELDS = {{}}{ANNOUNCED}", stderr=HINT)
    assert done.stdout == "wrong: 1\nwrong: other\nbug APPLIED None; one SKIPPED SWITCHED_OFF\n"


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ("{}", {"MCORE_AUTOPATCH_ENABLE": "one"}),
        ("{}", {"MCORE_AUTOPATCH_DISABLE": "one"}),
        ("{'probe': lambda module: False}", {}),
        ("{'affected': (Affected(megatron_core='<0.16', source='another'),)}", {}),
    ],
    ids=["on", "not wanted", "no bug", "not affected"],
)
def test_a_patch_is_not_named_where_it_would_not_help(run, fields, variables):
    assert run(f"FIELDS = {fields}{ANNOUNCED}", **variables).stdout.startswith("wrong: 1\nwrong: other\nbug APPLIED")


# What goes wrong.

BREAKAGES = {
    "probe": "patch(probe=lambda module: 1 / 0)",
    "builder": "patch(replacements={'function': tagging('ok'), 'Model.method': lambda original: 1 / 0})",
    "builds nothing": "patch(replacements={'function': tagging('ok'), 'Model.method': lambda original: None})",
    "missing attribute": "patch(attributes=('function', 'Model.gone'))",
    "missing under any name": "patch(attributes=('function', 'gone or Model.gone'))",
    "SystemExit": "patch(probe=lambda module: sys.exit(3))",
    "BaseException": "patch(probe=lambda module: (_ for _ in ()).throw(BaseException('base')))",
    "recursion": "patch(probe=(lambda f: lambda module: f(f, module))(lambda f, module: f(f, module)))",
}


@pytest.mark.parametrize("broken", BREAKAGES.values(), ids=BREAKAGES)
def test_a_patch_that_breaks_leaves_the_module_and_the_other_patches_alone(run, broken):
    done = run(
        f"""
use({broken}, patch("other", attributes=("Model.static",)))
import megatron.core.models.model as m
print(m.function(1), m.Model().method(2), m.Model.static(3))
(o, _) = mcore_autopatch.outcomes()
assert o.traceback.startswith("Traceback") and "is unchanged" in o.detail
{OUTCOME}
""",
        stderr=None,
    )
    expected = "('function', 1, 1) ('method', 2) ('other', 'static', 3)\none FAILED None; other APPLIED None\n"
    assert done.stdout == expected
    assert "one: failed" in done.stderr


def test_setting_is_all_or_nothing(run):
    done = run(
        f"""
use(patch(attributes=("function", "Frozen.method"), target="frozen"))
import megatron.core, types
class Meta(type):
    def __setattr__(cls, name, value):
        raise TypeError("frozen")
class Frozen(metaclass=Meta):
    def method(self): return ()
module = types.ModuleType("frozen")
module.__spec__ = importlib.machinery.ModuleSpec("frozen", object())
module.function, module.Frozen = (lambda x: (x,)), Frozen
Frozen.method.__globals__["__name__"] = "frozen"
sys.modules["frozen"] = module
mcore_autopatch.install()
print(module.function(1))
{OUTCOME}
""",
        stderr=None,
    )
    assert done.stdout == "(1,)\none FAILED None\n"


def test_keyboard_interrupt_passes_on_and_a_retry_is_patched(run):
    done = run("""
def interrupted(module, calls=[]):
    calls.append(1)
    if len(calls) == 1:
        raise KeyboardInterrupt
    return True
use(patch(probe=interrupted))
try:
    import megatron.core.models.model
except KeyboardInterrupt:
    print("interrupted")
import megatron.core.models.model as m
print(m.function(1))
""")
    assert done.stdout == "interrupted\n('one', 'function', 1, 1)\n"


def test_strict_raises_and_names_the_patch(run):
    done = run(
        """
use(patch(probe=lambda module: 1 / 0))
try:
    import megatron.core.models.model
except mcore_autopatch.AutopatchError as error:
    print(type(error).__name__, error.patch, type(error.__cause__).__name__, "_DISABLE=one" in str(error))
""",
        stderr=None,
        MCORE_AUTOPATCH_STRICT="1",
    )
    assert done.stdout == "PatchFailedError one ZeroDivisionError True\n"


def test_a_patch_file_that_cannot_be_loaded_is_an_outcome(run):
    done = run(
        f"""
use(patch(), broken={{"bad": ImportError("no such thing")}})
import megatron.core.models.model as m
print(m.function(1))
{OUTCOME}
""",
        stderr=None,
    )
    assert done.stdout == "('one', 'function', 1, 1)\nbad FAILED None; one APPLIED None\n"
    assert "bad from somebody 1.0: failed: ImportError: no such thing; it cannot be loaded from" in done.stderr


@pytest.mark.parametrize("name", ["wrapt", "packaging.version", "mcore_autopatch.catalogue", "mcore_autopatch.patches"])
def test_without_a_dependency_the_import_goes_on_and_one_line_says_so(python, name):
    code = f"import sys; sys.modules[{name!r}] = None; import megatron.core.models.model as m; print(m.function(1))"
    done = python("-c", code, overlays=[FAKE], check=0)
    assert done.stdout == "('function', 1, 1)\n"
    assert done.stderr.startswith("mcore-autopatch: no patch is applied in this process (")
    assert "MCORE_AUTOPATCH=0" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_log_handler_that_raises_changes_nothing(run):
    done = run(
        """
import logging
class Raising(logging.Handler):
    def emit(self, record):
        raise RuntimeError("handler")
logging.getLogger("mcore_autopatch").addHandler(Raising())
logging.getLogger("mcore_autopatch").setLevel(1)
use(patch(), patch("two", probe=lambda module: 1 / 0))
import megatron.core.models.model as m
print(m.function(1))
""",
        stderr=None,
    )
    assert done.stdout == "('one', 'function', 1, 1)\n"


# Versions and devices.


@pytest.mark.parametrize(
    ("core", "torch", "expected"),
    [
        ("0.16.1", "2.8.0+cu126", "APPLIED None"),
        ("0.16.0rc0", "2.9.0a0+50eac811a6.nv25.09", "APPLIED None"),
        ("0.16.0+vendor.3", "2.13.0", "APPLIED None"),
        ("0.17.0rc0", "2.13.0", "SKIPPED MEGATRON_VERSION"),
        ("0.9.0", "2.13.0", "SKIPPED MEGATRON_VERSION"),
        ("0.16.1", "2.7.1", "SKIPPED TORCH_VERSION"),
        ("core_v0.16", "2.13.0", "SKIPPED VERSION_UNREADABLE"),
        ("0.16.1", "git1234", "SKIPPED VERSION_UNREADABLE"),
        ("", "2.13.0", "SKIPPED VERSION_UNREADABLE"),
    ],
)
def test_rows_are_compared_by_release(run, core, torch, expected):
    done = run(
        f"""
use(patch(affected=(Affected(megatron_core=">=0.16,<0.17", torch=">=2.8", source="row"),)))
import megatron.core.models.model
{OUTCOME}
""",
        FAKE_MEGATRON_VERSION=core,
        FAKE_TORCH_VERSION=torch,
    )
    assert done.stdout == f"one {expected}\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FAKE_NPUS": "1"}, "npu APPLIED None npu row"),
        ({"FAKE_NPUS": "0"}, "cpu APPLIED None any row"),
        ({}, "cpu APPLIED None any row"),
        ({"FAKE_CUDA_BUILD": "12.8"}, "cpu APPLIED None any row"),
        ({"FAKE_CUDA_BUILD": "12.8", "FAKE_GPUS": "8"}, "cuda APPLIED None any row"),
        ({"FAKE_CUDA_BUILD": "12.8", "FAKE_GPUS": "8", "FAKE_NPUS": "8"}, "npu APPLIED None npu row"),
    ],
)
def test_the_first_row_that_matches_is_named_and_the_npu_is_asked_first(run, variables, expected):
    done = run(
        """
from mcore_autopatch import Device, installed
rows = (
    Affected(megatron_core=">=0.16", device=Device.NPU, source="npu row"),
    Affected(megatron_core=">=0.16", source="any row"),
)
use(patch(affected=rows))
import megatron.core.models.model
(o,) = mcore_autopatch.outcomes()
print(installed.device().value, o.status.name, o.reason, o.affected.source)
""",
        **variables,
    )
    assert done.stdout == f"{expected}\n"


def test_a_patch_for_another_device_is_skipped_and_says_so(run):
    done = run("""
use(patch(affected=(Affected(megatron_core=">=0.16", device=mcore_autopatch.Device.NPU, source="row"),)))
import megatron.core.models.model as m
(o,) = mcore_autopatch.outcomes()
print(m.function(1), o.reason.name, o.detail)
""")
    assert done.stdout == "('function', 1, 1) DEVICE only npu is affected; this is cpu\n"


def test_the_probe_decides(run):
    done = run(f"""
use(patch(probe=lambda module: False))
import megatron.core.models.model as m
print(m.function(1))
{OUTCOME}
""")
    assert done.stdout == "('function', 1, 1)\none SKIPPED BUG_ABSENT\n"


# Switches.


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MCORE_AUTOPATCH_DISABLE": "one"}, "one SKIPPED SWITCHED_OFF; two APPLIED None"),
        ({"MCORE_AUTOPATCH_DISABLE": " One ,two,"}, "one SKIPPED SWITCHED_OFF; two SKIPPED SWITCHED_OFF"),
        ({"MCORE_AUTOPATCH_ONLY": "one"}, "one APPLIED None; two SKIPPED SWITCHED_OFF"),
        (
            {"MCORE_AUTOPATCH_ONLY": "one", "MCORE_AUTOPATCH_DISABLE": "one"},
            "one SKIPPED SWITCHED_OFF; two SKIPPED SWITCHED_OFF",
        ),
        ({"FAKE_MEGATRON_VERSION": "0.20"}, "one SKIPPED MEGATRON_VERSION; two SKIPPED MEGATRON_VERSION"),
        (
            {"FAKE_MEGATRON_VERSION": "0.20", "MCORE_AUTOPATCH_FORCE": "one"},
            "one APPLIED None; two SKIPPED MEGATRON_VERSION",
        ),
        (
            {"FAKE_MEGATRON_VERSION": "?", "MCORE_AUTOPATCH_FORCE": "one"},
            "one APPLIED None; two SKIPPED VERSION_UNREADABLE",
        ),
    ],
)
def test_switches_by_id(run, variables, expected):
    done = run(f'use(patch("one"), patch("two"))\nimport megatron.core.models.model\n{OUTCOME}', **variables)
    assert done.stdout == f"{expected}\n"


def test_force_does_not_skip_the_probe(run):
    code = f"use(patch(probe=lambda module: False))\nimport megatron.core.models.model\n{OUTCOME}"
    done = run(code, MCORE_AUTOPATCH_FORCE="one", FAKE_MEGATRON_VERSION="0.20")
    assert done.stdout == "one SKIPPED BUG_ABSENT\n"


def test_switching_off_inside_the_script_works(run):
    done = run("""
import os
os.environ["MCORE_AUTOPATCH"] = "0"
use(patch())
import megatron.core.models.model as m
print(m.function(1), "wrapt" in sys.modules, mcore_autopatch.outcomes(), mcore_autopatch.install())
""")
    assert done.stdout == "('function', 1, 1) False () ()\n"


@pytest.mark.parametrize(
    ("variables", "warning"),
    [
        (
            {"MCORE_AUTOPATCH_DISABLE": "onne"},
            "MCORE_AUTOPATCH_DISABLE names 'onne', which is no patch; did you mean one?\n",
        ),
        ({"MCORE_AUTOPATCH_FORCE": "zzz"}, "MCORE_AUTOPATCH_FORCE names 'zzz', which is no patch; known: one\n"),
        (
            {"MCORE_AUTOPATCH_STRICT": "perhaps"},
            "MCORE_AUTOPATCH_STRICT='perhaps' is neither on (1) nor off (0); taken as 0\n",
        ),
        ({"MCORE_AUTOPATCH": "maybe"}, "MCORE_AUTOPATCH='maybe' is neither on (1) nor off (0); taken as 1\n"),
    ],
)
def test_a_value_that_makes_no_sense_is_one_warning(run, variables, warning):
    done = run(
        "use(patch())\nimport megatron.core.models.model as m\nprint(m.function(1))",
        stderr=f"mcore-autopatch: {warning}",
        **variables,
    )
    assert done.stdout == "('one', 'function', 1, 1)\n"


# What is said.


def test_without_asking_nothing_is_printed(run):
    run("use(patch(), patch('two', probe=lambda m: False))\nimport megatron.core.models.model")


@pytest.mark.parametrize("level", ["1", "2"])
def test_verbose_prints_one_line_per_decision_on_stderr(run, level):
    code = "use(patch(), patch('two', probe=lambda m: False))\nimport megatron.core.models.model"
    done = run(code, stderr=None, MCORE_AUTOPATCH_VERBOSE=level)
    one, two = done.stderr.splitlines()
    assert one.startswith("mcore-autopatch: one: applied: megatron-core 0.16.1, torch 2.13.0+cpu, cpu; affected: ")
    assert two.startswith("mcore-autopatch: two: skipped (bug absent): ")
    assert ("ms]" in one) is (level == "2")


def test_on_other_local_ranks_level_1_prints_failures_only_and_level_2_everything(run):
    code = "use(patch(), patch('two', probe=lambda m: 1 / 0))\nimport megatron.core.models.model"
    quiet = run(code, stderr=None, MCORE_AUTOPATCH_VERBOSE="1", LOCAL_RANK="1", RANK="9").stderr
    assert "one: applied" not in quiet and "two: failed: ZeroDivisionError" in quiet
    loud = run(code, stderr=None, MCORE_AUTOPATCH_VERBOSE="2", LOCAL_RANK="1", RANK="9").stderr
    assert "one: applied" in loud and "[rank 9, pid " in loud


def test_log_records_have_the_levels_that_are_promised(run):
    done = run("""
import logging
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(levelname)s %(name)s %(message).12s")
use(patch(), patch("two", probe=lambda m: False), patch("zzz", probe=lambda m: 1 / 0))
import megatron.core.models.model
""")
    lines = [line for line in done.stdout.splitlines() if "mcore_autopatch" in line]
    assert lines == [
        "INFO mcore_autopatch one: applied",
        "DEBUG mcore_autopatch two: skipped",
        "WARNING mcore_autopatch mcore-autopa",
    ]


def test_the_report_tells_hook_versions_device_and_outcomes(run):
    done = run("""
use(patch())
print(mcore_autopatch.report())
import megatron.core.models.model
print(mcore_autopatch.report())
""")
    assert done.stdout.splitlines()[:5] == [
        "hook:          active",
        "megatron-core: not loaded",
        "torch:         2.13.0+cpu",
        "device:        cpu",
        "no patch has been considered yet: megatron.core is not imported",
    ]
    assert done.stdout.splitlines()[6] == "megatron-core: 0.16.1"
    assert done.stdout.splitlines()[9].startswith("one: applied: ")
