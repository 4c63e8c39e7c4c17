"""mtp-recompute-packed-seq: MTP layers are recomputed with packed sequences, and nothing else changes."""

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import mtp_recompute_packed_seq

ID = "mtp-recompute-packed-seq"
ERROR = "TypeError: save_for_backward can only save variables, but argument 10 is of type PackedSeqParams"
EQUAL = "losses and gradients are those without recompute: "
#: megatron-core release -> status of the patch, and the reason if it is skipped.
EXPECTED = {
    "0.15.3": "SKIPPED MEGATRON_VERSION",
    "0.16.0": "APPLIED",
    "0.16.1": "APPLIED",
    "0.17.0": "APPLIED",
    "0.17.1": "APPLIED",
    "0.18.0": "SKIPPED MEGATRON_VERSION",
}


class Of016:
    def forward(self, packed_seq_params=None):
        return self._checkpointed_forward(self.layer, packed_seq_params=packed_seq_params)

    def _checkpointed_forward(self, forward_func, *args, **kwargs):
        def checkpoint_handler():
            return tensor_parallel.checkpoint(forward_func, False, *args, *kwargs.values())  # noqa: F821

        return checkpoint_handler()


class Of015(Of016):
    def forward(self, packed_seq_params=None):
        assert packed_seq_params is None, "not yet supported"
        return self._checkpointed_forward(self.layer, packed_seq_params=packed_seq_params)


class Of018(Of016):
    def _checkpointed_forward(self, hidden_states, packed_seq_params=None):
        def custom_forward(hidden_states):
            return self.layer(hidden_states, packed_seq_params)

        return tensor_parallel.checkpoint(custom_forward, False, hidden_states)  # noqa: F821


@pytest.mark.parametrize("layer", [Of015, Of018])
def test_does_nothing_where_packed_sequences_are_refused_or_go_around_the_checkpoint(layer):
    assert not mtp_recompute_packed_seq.probe(SimpleNamespace(MultiTokenPredictionLayer=layer))


def test_sees_the_bug_in_the_code():
    assert mtp_recompute_packed_seq.probe(SimpleNamespace(MultiTokenPredictionLayer=Of016))


class Tensor: ...


class Params: ...


@pytest.fixture
def replacement(monkeypatch):
    """The replacement of a method that does what the real one does, over a torch whose tensors are Tensor."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))

    def original(self, forward_func, *args, **kwargs):
        if self.config.fp8:
            return forward_func, args, kwargs
        if self.config.recompute_method == "block":
            return forward_func(*args, **kwargs)
        saved = (*args, *kwargs.values())
        assert all(value is None or isinstance(value, Tensor) for value in saved)
        return [forward_func(*saved) for _ in range(2)]

    return mtp_recompute_packed_seq.tensors_only(original)


def layer(method="uniform", fp8=None):
    return SimpleNamespace(config=SimpleNamespace(recompute_method=method, fp8=fp8))


def forward_func(hidden_states, decoder_input=None, inference_params=None, packed_seq_params=None, offset=None):
    return hidden_states, decoder_input, inference_params, packed_seq_params, offset


def test_what_is_no_tensor_arrives_by_name_and_in_its_place(replacement):
    first, second, packed = Tensor(), Tensor(), Params()
    named = {"decoder_input": second, "inference_params": None, "packed_seq_params": packed, "offset": 3}
    expected = (first, second, None, packed, 3)

    assert replacement(layer(), forward_func, first, **named) == [expected] * 2
    assert replacement(layer(), forward_func, hidden_states=first, **named) == [expected] * 2
    assert replacement(layer("block"), forward_func, first, **named) == expected


def test_fp8_calls_are_passed_on_untouched(replacement):
    packed = Params()

    assert replacement(layer(fp8="e4m3"), forward_func, 1, packed_seq_params=packed) == (
        forward_func,
        (1,),
        {"packed_seq_params": packed},
    )


def test_tensors_are_not_kept_alive(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    replacement = mtp_recompute_packed_seq.tensors_only(lambda self, forward_func, *args, **kwargs: forward_func)
    first, second = Tensor(), Tensor()
    held = replacement(layer(), forward_func, first, decoder_input=second, packed_seq_params=Params())
    references = weakref.ref(first), weakref.ref(second)

    del first, second
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert held


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.15.3", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.16.0", "0.17.1"])
def test_packed_sequences_train_and_nothing_else_changes(reproduce, version):
    without = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)
    with_us = reproduce(version, ID, check=0)

    assert without.pop("packed") == ERROR
    packed = with_us.pop("packed")
    # The digests in the details show that what worked before is the same bit for bit.
    assert without == with_us
    assert all(detail.startswith(EQUAL) for detail in with_us.values())
    # With the method "block" megatron-core does not recompute MTP layers.
    assert packed == with_us["block"] != with_us["plain"]


@pytest.mark.real
def test_stands_back_where_mindspeed_has_replaced_the_method(python, megatron_core, tmp_path):
    """As MindSpeed's core_r0.16.0 does, in a process that calls install() after it."""
    package = tmp_path / "theirs" / "mindspeed"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bridge_adaptor.py").write_text("def mtp_checkpointed_forward_impl(self, forward_func, **kwargs): ...\n")
    script = f"""
import os
os.environ["MCORE_AUTOPATCH"] = "0"
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer as Layer
from mindspeed.bridge_adaptor import mtp_checkpointed_forward_impl
Layer._checkpointed_forward = mtp_checkpointed_forward_impl
os.environ["MCORE_AUTOPATCH"] = "1"
import mcore_autopatch
outcomes = {{outcome.patch: outcome for outcome in mcore_autopatch.install()}}
assert Layer._checkpointed_forward is mtp_checkpointed_forward_impl
print(outcomes[{ID!r}].reason.name, outcomes[{ID!r}].detail)
"""
    done = python("-c", script, overlays=[megatron_core("0.16.1"), package.parent], check=0)

    replaced = "MultiTokenPredictionLayer._checkpointed_forward has been replaced by mindspeed.bridge_adaptor"
    assert done.stdout.splitlines()[-1] == f"ALREADY_PATCHED {replaced}"
