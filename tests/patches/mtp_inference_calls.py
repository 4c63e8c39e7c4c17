"""Calls of GPTModel in all their variety, each checked against the model without MTP or against the original method.

Every function here is one check; all are run, and what failed is printed as JSON, name -> traceback.
"""

import copy
import inspect
import json
import pickle
import sys
import traceback

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from mcore_autopatch.reproductions import _cpu

BATCH = _cpu.batch()
LABELS = BATCH["input_ids"].roll(-1, dims=1)
ORIGINAL = GPTModel._postprocess.__wrapped__
MTP_STANDALONE = hasattr(TransformerConfig, "mtp_standalone")


def expected(**batch):
    return _cpu.gpt_model(None).eval()(**{**BATCH, **batch})


def arguments(model, hidden_states, **more):
    """Return arguments of ``_postprocess`` for the batch, of which the first seven are required."""
    rotary_pos_emb = model.rotary_pos_emb(8)
    required = {"hidden_states": hidden_states, **BATCH, "labels": None, "rotary_pos_emb": rotary_pos_emb}
    mask = required.pop("attention_mask")
    return {**required, "rotary_pos_cos": None, "rotary_pos_sin": None, "attention_mask": mask, **more}


def hidden_states(chunks=1, seed=3):
    return torch.randn(8 * chunks, 2, 32, generator=torch.Generator().manual_seed(seed))


def check_training_and_evaluation_alternate():
    model = _cpu.gpt_model(1)
    for training in (True, False, True, False):
        model.train(training)
        assert torch.equal(model(**BATCH), expected())
        model(**BATCH, labels=LABELS).mean().backward()


def check_two_mtp_layers():
    for training in (True, False):
        assert torch.equal(_cpu.gpt_model(2).train(training)(**BATCH), expected())


def check_mtp_layers_run_in_training_only():
    runs = []
    model = _cpu.gpt_model(1)
    model.mtp.register_forward_hook(lambda *_: runs.append(model.training))
    with torch.no_grad():
        model.eval()(**BATCH)
        model.train()(**BATCH)
        model.eval()(**BATCH)
    assert runs == [True]


def check_no_label_after_all_by_position_and_by_keyword():
    model = _cpu.gpt_model(1).eval()
    kwargs = arguments(model, hidden_states(), mtp_in_postprocess=True)
    plain = _cpu.gpt_model(None).eval()._postprocess(**{**kwargs, "mtp_in_postprocess": False})
    names = list(inspect.signature(ORIGINAL).parameters)[1:8]
    args = [kwargs.pop(name) for name in names]
    assert torch.equal(model._postprocess(*args, **kwargs), plain)
    assert torch.equal(model._postprocess(*args[:3], **dict(zip(names[3:], args[3:], strict=True)), **kwargs), plain)


def check_labels_by_position_and_by_keyword():
    """The MTP loss is not part of the returned one; what shows it are gradients in the MTP layers."""
    names = list(inspect.signature(ORIGINAL).parameters)[1:8]
    for positional in (names, names[:3], ()):
        results = []
        for function in (ORIGINAL, GPTModel._postprocess):
            model = _cpu.gpt_model(1).train()
            kwargs = arguments(model, hidden_states(), labels=LABELS, mtp_in_postprocess=True)
            loss = function(model, *[kwargs.pop(name) for name in positional], **kwargs)
            loss.mean().backward()
            results.append((loss, model.mtp.layers[0].eh_proj.weight.grad))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        assert results[0][1].any()


def check_missing_and_unknown_arguments_are_the_original_errors():
    model = _cpu.gpt_model(1).eval()
    complete = arguments(model, hidden_states())
    incomplete = {name: value for name, value in complete.items() if name != "labels"}
    for args, kwargs in [
        ((), {}),
        ((), incomplete),
        ((1, 2, 3), {}),
        ((), {**complete, "unknown": 1}),
        ((1,), complete),
    ]:
        errors = []
        for function in (ORIGINAL, GPTModel._postprocess):
            try:
                function(model, *args, **kwargs)
            except TypeError as error:
                errors.append(str(error))
        assert len(errors) == 2
        assert errors[0] == errors[1]


def check_earlier_stages_are_untouched():
    """Shapes go over the wire to the next stage, so that the MTP layers run in evaluation too."""
    for training in (True, False):
        model = _cpu.gpt_model(1, model={"post_process": False}).train(training)
        kwargs = arguments(model, hidden_states(), mtp_in_postprocess=True)
        output = model._postprocess(**kwargs)
        assert output.shape == (16, 2, 32)
        assert torch.equal(output, ORIGINAL(model, **kwargs))


def check_mtp_layers_that_ran_before_the_call():
    """As in megatron-core's overlapped schedule, where each MTP layer is a step of its own before _postprocess."""
    for layers in (1, 2):
        for training in (True, False):
            model = _cpu.gpt_model(layers).train(training)
            main = hidden_states()
            arriving = torch.cat([main, hidden_states(layers, seed=4)])
            logits = model._postprocess(**arguments(model, arriving, mtp_in_postprocess=False))
            assert torch.equal(logits, ORIGINAL(_cpu.gpt_model(None), **arguments(model, main)))


def check_mtp_layers_on_an_earlier_stage():
    """In 0.16 a pipeline layout can put the MTP layers on a stage of their own; then the config says so."""
    if not MTP_STANDALONE:
        return
    stage = {"pre_process": False, "mtp_block_spec": None}
    for training in (True, False):
        model = _cpu.gpt_model(1, model=stage, mtp_standalone=True).train(training)
        main = hidden_states()
        arriving = torch.cat([main, hidden_states(seed=4)])
        logits = model._postprocess(**arguments(model, arriving, mtp_in_postprocess=False))
        assert torch.equal(logits, ORIGINAL(_cpu.gpt_model(None), **arguments(model, main)))


def check_no_mtp_layers_on_any_stage():
    """A value model, say: its config counts MTP layers, but nobody built them, so that all of the logits are wanted."""
    for pre_process in (True, False):
        stage = {"pre_process": pre_process, "mtp_block_spec": None}
        for training in (True, False):
            model = _cpu.gpt_model(1, model=stage).train(training)
            kwargs = arguments(model, hidden_states(), mtp_in_postprocess=False)
            assert torch.equal(model._postprocess(**kwargs), ORIGINAL(_cpu.gpt_model(None), **kwargs))


def check_a_config_that_has_lost_its_mtp_layers_since():
    """0.14 and 0.15 go by the MTP block; in 0.16 such a call is not ours."""
    if MTP_STANDALONE:
        return
    for training in (True, False):
        model = _cpu.gpt_model(1).train(training)
        model.config.mtp_num_layers = None
        assert torch.equal(model(**BATCH), expected())


def check_the_config_is_not_changed():
    changes = []

    class Recording(TransformerConfig):
        def __setattr__(self, name, value):
            changes.append((id(self), name))
            super().__setattr__(name, value)

    model = _cpu.gpt_model(1)
    config = model.config
    config.__class__ = Recording
    before = copy.deepcopy(vars(config))
    seen = []
    model.output_layer.register_forward_hook(lambda *_: seen.append((model.config is config, config.mtp_num_layers)))
    for training in (True, False):
        model.train(training)(**BATCH)
    assert seen == [(True, 1), (True, 1)]
    assert not [name for owner, name in changes if owner == id(config)]
    config.mtp_num_layers = 1
    assert changes[-1] == (id(config), "mtp_num_layers")
    assert repr(vars(config)) == repr(before)
    assert model.config is config
    assert all(module.config is config for module in model.modules() if hasattr(module, "config"))


def check_the_config_of_another_class():
    model = _cpu.gpt_model(1).eval()
    model.config.__class__ = MLATransformerConfig
    assert torch.equal(model(**BATCH), expected())
    assert type(model.config) is MLATransformerConfig


def check_shared_embeddings():
    shared = {"share_embeddings_and_output_weights": True}
    for training in (True, False):
        model = _cpu.gpt_model(1, model=shared).train(training)
        assert torch.equal(model(**BATCH), _cpu.gpt_model(None, model=shared)(**BATCH))


def check_inference_mode_and_no_grad():
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            for training in (True, False):
                assert torch.equal(_cpu.gpt_model(1).train(training)(**BATCH), expected())


def check_static_inference_context():
    from megatron.core.inference.contexts import StaticInferenceContext

    results = []
    for layers in (1, None):
        model = _cpu.gpt_model(layers).eval()
        context = StaticInferenceContext(2, 16)
        context.materialize_only_last_token_logits = True
        with torch.no_grad():
            results.append(model(**BATCH, inference_context=context, runtime_gather_output=True))
    assert results[0].shape == (2, 1, 64)
    assert torch.equal(*results)


def check_subclass_that_calls_super():
    class Doubled(GPTModel):
        def _postprocess(self, *args, **kwargs):
            return super()._postprocess(*args, **kwargs) * 2

    model = _cpu.gpt_model(1).eval()
    model.__class__ = Doubled
    assert torch.equal(model(**BATCH), expected() * 2)


def check_verl_on_top():
    """Verl wraps the method again, and turns a falsy mtp_num_layers into None during the call."""
    ours = GPTModel._postprocess

    def verls(self, *args, **kwargs):
        before = self.config.mtp_num_layers
        if not before:
            self.config.mtp_num_layers = None
        try:
            return ours(self, *args, **kwargs)
        finally:
            self.config.mtp_num_layers = before

    GPTModel._postprocess = verls
    try:
        for layers in (0, 1, None):
            assert torch.equal(_cpu.gpt_model(layers).eval()(**BATCH), expected())
    finally:
        GPTModel._postprocess = ours


def check_ddp_with_overlapped_gradient_reduction():
    """The reason for the zero gradients: DDP waits for the gradient of every parameter."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    model = _cpu.gpt_model(1)
    options = DistributedDataParallelConfig(overlap_grad_reduce=True, bucket_size=1000)
    parallel = DistributedDataParallel(model.config, options, model).train()
    parallel.zero_grad_buffer()
    parallel(**BATCH).square().mean().backward()
    parallel.finish_grad_sync()


def check_signature_and_pickle_are_those_of_the_original():
    assert inspect.signature(GPTModel._postprocess) == inspect.signature(ORIGINAL)
    assert GPTModel._postprocess.__name__ == ORIGINAL.__name__
    assert GPTModel._postprocess.__qualname__ == ORIGINAL.__qualname__
    assert GPTModel._postprocess.__doc__ == ORIGINAL.__doc__
    assert pickle.loads(pickle.dumps(GPTModel._postprocess)) is GPTModel._postprocess


checks = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
failed = {}
for name, check in checks.items():
    try:
        check()
    except Exception:
        failed[name] = traceback.format_exc()
        sys.stderr.write(failed[name])
print(json.dumps({"checks": len(checks), "failed": failed}))
