"""Stands in for MindSpeed and MindSpeed-LLM: their way to patch by dotted paths, in other words than theirs."""

import functools
import importlib
import importlib.machinery
import sys
import types

MODEL = "megatron.core.models.gpt.gpt_model.GPTModel"
WRITER = "megatron.core.dist_checkpointing.strategies.filesystem_async.FileSystemWriterAsync"
#: What of MindSpeed's has been called, in this order.
CALLS = []
#: Dotted path -> its entry.
ENTRIES = {}


class Entry:
    """What is to be put in the place of one dotted path; the original is that of the first time."""

    def __init__(self, path, *, dummy):
        self.owner_path, _, self.name = path.rpartition(".")
        self.dummy = dummy
        self.owner = self.original = self.replacement = self.final = None
        self.wrappers = []

    def apply(self):
        owner = find(self.owner_path, dummy=self.dummy)
        # Where there is nothing of this name, there is now.
        if not hasattr(owner, self.name):
            setattr(owner, self.name, None)
        current = getattr(owner, self.name)
        if self.owner is None:
            self.owner, self.original = owner, current
        self.final = self.replacement or self.original
        for wrapper in self.wrappers:
            self.final = wrapper(self.final)
        setattr(self.owner, self.name, self.final)
        self.everywhere(current, self.final)

    def remove(self):
        """Put the original back, into modules and not into classes, as MindSpeed does."""
        self.everywhere(self.final, self.original)
        self.replacement, self.wrappers = None, []

    def everywhere(self, old, new):
        """Exchange ``old`` in every module that has imported it under its name."""
        for module in list(sys.modules.values()):
            if hasattr(module, self.name) and getattr(module, self.name) is old:
                setattr(module, self.name, new)


def find(path, *, dummy):
    """Import the module or find the class at a path. Where a module cannot be found, ``dummy`` puts one there."""
    found = None
    words = path.split(".")
    for end in range(1, len(words) + 1):
        name = ".".join(words[:end])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError:
            if found is not None and hasattr(found, words[end - 1]):
                found = getattr(found, words[end - 1])
                continue
            if not dummy:
                raise
            module = types.ModuleType(name)
            module.__file__ = "mindspeed_stand_in.dummy_module.py"
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name] = module
            if found is not None:
                setattr(found, words[end - 1], module)
            found = module
    return found


def register(path, function, *, dummy=False):
    entry = ENTRIES.setdefault(path, Entry(path, dummy=dummy))
    if function.__name__.endswith(("wrapper", "decorator")):
        entry.wrappers.append(function)
    else:
        entry.replacement = function


def apply():
    for entry in ENTRIES.values():
        entry.apply()


def repatch():
    """Take everything back, register it again, and apply it, as when the arguments have changed."""
    paths = {path: (entry.replacement, entry.wrappers) for path, entry in ENTRIES.items()}
    for path, (replacement, wrappers) in paths.items():
        ENTRIES[path].remove()
        for function in filter(None, [replacement, *wrappers]):
            register(path, function)
    apply()


def wrap_postprocess():
    register(f"{MODEL}._postprocess", postprocess_wrapper)
    register(f"{MODEL}._postprocess", postprocess_decorator)
    register("importlib.metadata.version", version_wrapper)
    register("amp_C.multi_tensor_scale", nothing, dummy=True)
    apply()


def replace_preload():
    # Not the function in it: that is what does not pickle.
    register(f"{WRITER}.preload_tensors", preload_tensors)
    apply()


def dummy_of_a_target():
    """Patch something in a target that cannot be imported, because what it imports is not installed."""
    sys.modules["megatron.core.tensor_parallel.mappings"] = None
    register("megatron.core.models.gpt.gpt_model.missing", nothing, dummy=True)
    apply()


def replace_model():
    """Put a class of MindSpeed-LLM's in the place of GPTModel, wherever it has been imported."""
    from megatron.core.models.gpt.gpt_model import GPTModel as Original

    class GPTModel(Original):
        def forward(self, *args, **kwargs):
            CALLS.append("class")
            return super().forward(*args, **kwargs)

    register(MODEL, GPTModel)
    apply()


def postprocess_wrapper(original):
    @functools.wraps(original)
    def wrapper(self, *args, **kwargs):
        CALLS.append("first")
        return original(self, *args, **kwargs)

    return wrapper


def postprocess_decorator(original):
    @functools.wraps(original)
    def wrapper(self, *args, **kwargs):
        CALLS.append("second")
        return original(self, *args, **kwargs)

    return wrapper


def version_wrapper(original):
    @functools.wraps(original)
    def wrapper(name, *args, **kwargs):
        return "0.0"

    return wrapper


def nothing(*args, **kwargs):
    raise RuntimeError("a dummy was called")


@staticmethod
def preload_tensors(write_buckets, non_blocking=True):
    CALLS.append("preload")
    return [
        (path, key, (objects, [(item, tensor.to("cpu", non_blocking=False)) for item, tensor in tensors]))
        for path, key, (objects, tensors) in write_buckets
    ]
