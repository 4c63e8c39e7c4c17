"""Others that change how Python imports, before or after we do.

Threads that import at once, reload, deletion and a second import, other finders, lazy loaders, modules that replace
themselves, specs that are looked up and pickled are in test_engine.py.
"""

import shutil
import zipfile

import pytest
from environments import FAKE, OUTCOME, fetch

IMPORT = "import megatron.core.models.model as m; print(m.function(1))"
PATCHED = "('one', 'function', 1, 1)\n"


@pytest.mark.parametrize("armed", [False, True], ids=["before arming", "after arming"])
@pytest.mark.parametrize(
    "change",
    [
        "sys.meta_path = list(sys.meta_path)",
        "sys.meta_path = saved",
        "sys.meta_path[:] = saved",
        "sys.meta_path[:] = []; sys.meta_path.extend(saved)",
        "sys.meta_path.append(sys.meta_path.pop(0)); sys.meta_path.insert(0, sys.meta_path.pop())",
        "sys.meta_path = type('Own', (list,), {})(saved)",
        "sys.path_hooks[:] = list(sys.path_hooks); sys.path_importer_cache.clear()",
        "importlib.invalidate_caches()",
        "sys.meta_path[:] = [f for f in sys.meta_path if 'wrapt' not in type(f).__module__]",
    ],
)
def test_targets_are_patched_though_the_list_of_finders_is_changed_or_restored(run, armed, change):
    # Guard: our own finder fires the hooks of our targets; wrapt's finder may be gone.
    done = run(f"""
saved = list(sys.meta_path)
use(patch())
if {armed}:
    import megatron.core
{change}
{IMPORT}
importlib.reload(m)
print(m.function(1))
""")
    assert done.stdout == PATCHED * 2


def test_without_any_finder_an_import_fails_as_without_us_and_works_when_they_are_back(run):
    code = f"""
use(patch())
import megatron.core
saved = sys.meta_path[:]
for attempt in ([], None):
    sys.meta_path = attempt
    try:
        import megatron.core.models.model
    except ImportError as error:
        print(type(error).__name__, error)
sys.meta_path = saved
{IMPORT}
"""
    done, off = run(code, stderr=None), run(code, stderr=None, MCORE_AUTOPATCH="0")
    assert done.stdout.splitlines()[:-1] == off.stdout.splitlines()[:-1]
    assert done.stdout.endswith(PATCHED)


def test_our_finder_taken_away_leaves_wrapts_to_fire_the_hooks(run):
    # Guard: the hooks are registered with wrapt.
    done = run(f"""
use(patch())
import megatron.core
sys.meta_path[:] = [f for f in sys.meta_path if f is not sys.modules["_mcore_autopatch"]]
{IMPORT}
""")
    assert done.stdout == PATCHED


@pytest.mark.parametrize("before", ["", "import megatron.core.models"], ids=["before arming", "after arming"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("lazily", [False, True], ids=["plain", "lazy"])
def test_a_finder_that_asks_all_others_gives_a_patched_module(run, before, place, lazily):
    """As many import hooks do: their finder asks the other ones, and wraps the loader of the spec that it gets."""
    # Guards: find_spec() asks those behind our finder only, none while one of them asks it, and keeps wrapt's aside.
    done = run(f"""
import importlib.util
class Loader:
    def __init__(self, real): self.real = real
    def create_module(self, spec): return self.real.create_module(spec)
    def exec_module(self, module):
        print("theirs")
        self.real.exec_module(module)
class Front:
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                if name == MODEL:
                    spec.loader = Loader(spec.loader)
                    spec.loader = importlib.util.LazyLoader(spec.loader) if {lazily} else spec.loader
                return spec
use(patch())
{before}
sys.meta_path.insert({place}, Front())
m = importlib.import_module(MODEL)
print(m.function(1))
""")
    assert done.stdout == f"theirs\n{PATCHED}"


@pytest.mark.parametrize("before", ["", "import megatron.core"], ids=["before arming", "after arming"])
def test_typeguard_in_front_finds_the_targets_itself_and_install_comes_first_again(run, before):
    # Without the call it stands in front, and wrapt and we do not see its modules: doctor says so.
    done = run(
        f"""
from typeguard import install_import_hook
use(patch())
{before}
install_import_hook("megatron")
mcore_autopatch.install()
{IMPORT}
print("typeguard" in type(m.__spec__.loader).__module__)
""",
        overlays=[fetch("typeguard==4.4.4"), fetch("typing_extensions==4.15.0")],
    )
    assert done.stdout == f"{PATCHED}True\n"


@pytest.mark.parametrize("name", ["megatron", "megatron.core", "megatron.core.models.model"])
def test_a_finder_that_raises_fails_as_without_us(run, name):
    done = run(f"""
class Raising:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise LookupError(name)
sys.meta_path.insert(1, Raising())
use(patch())
for name in ("megatron.core", MODEL):
    try:
        importlib.import_module(name)
    except LookupError as error:
        print(error)
sys.meta_path.remove(next(finder for finder in sys.meta_path if type(finder) is Raising))
{IMPORT}
importlib.reload(m)
print(m.function(1))
""")
    times = 1 if name == "megatron.core.models.model" else 2
    assert done.stdout == f"{name}\n" * times + PATCHED * 2


@pytest.mark.parametrize("name", ["megatron.core.data", "megatron.core.data.deep"])
def test_a_target_without_a_file_is_a_namespace_package_and_left_alone(run, tmp_path, name):
    (tmp_path / "megatron" / "core" / "data" / "deep").mkdir(parents=True)
    done = run(
        f"""
use(patch(target={name!r}, replacements={{}}, additions={{"x": 1}}))
import megatron.core
megatron.core.__path__.append({str(tmp_path / "megatron" / "core")!r})
package = importlib.import_module({name!r})
print(package.__spec__.origin, list(package.__path__), type(package.__loader__).__name__)
{OUTCOME}
""",
    )
    first, second = done.stdout.splitlines()
    folder = tmp_path.joinpath(*name.split("."))
    assert first == f"None ['{folder}'] NamespaceLoader" or first.endswith("_NamespaceLoader")
    assert second.startswith("one ")


def test_megatron_core_is_imported_from_a_zip_file(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "megatron.zip", "w") as archive:
        for path in (FAKE / "megatron", *(FAKE / "megatron").rglob("[a-z_]*[!c]")):
            archive.write(path, path.relative_to(FAKE))
    done = run(f"""
sys.path.insert(0, {str(tmp_path / "megatron.zip")!r})
use(patch())
{IMPORT}
print(type(m.__spec__.loader).__name__, m.__file__.count("megatron.zip"), m.__spec__.loader is m.__loader__)
importlib.reload(m)
print(m.function(1))
""")
    assert done.stdout == f"{PATCHED}zipimporter 1 True\n{PATCHED}"


def test_of_two_copies_the_one_that_is_imported_decides_also_after_a_change(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(FAKE / "megatron", other / "megatron")
    (other / "megatron" / "core" / "package_info.py").write_text("__version__ = '0.9.0'")
    done = run(f"""
use(patch())
sys.path.append({str(other)!r})
{IMPORT}
for name in [n for n in sys.modules if n.startswith("megatron")]:
    del sys.modules[name]
sys.path.insert(0, {str(other)!r})
{IMPORT}
{OUTCOME}
""")
    assert done.stdout == f"{PATCHED}('function', 1, 1)\none SKIPPED MEGATRON_VERSION\n"


@pytest.mark.parametrize("body", ["sys.modules[__name__] = None", "del sys.modules[__name__]", "sys.modules.clear()"])
def test_a_target_that_changes_sys_modules_fails_or_works_as_without_us(run, tmp_path, body):
    (tmp_path / "odd.py").write_text(f"import sys\ndef function(x): return (x,)\n{body}\n")
    code = f"""
use(patch(target="odd"))
sys.path.insert(0, {str(tmp_path)!r})
import megatron.core
try:
    import odd
    print(type(odd))
except BaseException as error:
    print(type(error), error)
"""
    done, off = run(code, stderr=None), run(code, stderr=None, MCORE_AUTOPATCH="0")
    assert done.stdout == off.stdout


def test_fifty_threads_import_fifty_targets_at_once(run, tmp_path):
    for number in range(50):
        (tmp_path / f"target{number}.py").write_text("import time; time.sleep(0.001)\ndef function(x): return (x,)\n")
    done = run(f"""
import threading
sys.path.insert(0, {str(tmp_path)!r})
use(*(patch(f"p{{n}}", target=f"target{{n}}") for n in range(50)))
gate, results = threading.Barrier(50), set()
def load(number):
    gate.wait()
    import megatron.core
    results.add(importlib.import_module(f"target{{number}}").function(1))
    results.add(importlib.import_module(f"target{{(number + 1) % 50}}").function(1))
threads = [threading.Thread(target=load, args=(number,)) for number in range(50)]
[thread.start() for thread in threads]
[thread.join(30) for thread in threads]
print(results == {{(f"p{{n}}", 1) for n in range(50)}}, len(mcore_autopatch.outcomes()))
""")
    assert done.stdout == "True 50\n"


def test_a_module_imported_for_a_patch_by_two_threads_is_no_deadlock(run, tmp_path):
    (tmp_path / "helper.py").write_text("import time; time.sleep(0.3)\nimport megatron.core.models.model\n")
    done = run(
        f"""
import threading, time
sys.path.insert(0, {str(tmp_path)!r})
def probe(module):
    import helper
    return True
use(patch(probe=probe))
thread = threading.Thread(target=__import__, args=("helper",))
thread.start()
time.sleep(0.1)
{IMPORT}
thread.join(20)
print(thread.is_alive(), "helper" in sys.modules)
""",
        stderr=None,
    )
    assert done.stdout.endswith("False True\n")
