"""Calls of a model of 0.12 or 0.13 in their variety, each checked against the model without MTP or the original method.

Every function here is one check; all are run, and what failed is printed as JSON, name -> traceback.
"""

import inspect
import json
import sys
import traceback

import torch
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper, MultiTokenPredictionBlock

from mcore_autopatch.reproductions import _cpu

BATCH = _cpu.batch()
LABELS = BATCH["input_ids"].roll(-1, dims=1)
ORIGINAL = MultiTokenPredictionBlock.forward.__wrapped__


def expected():
    return _cpu.gpt_model(None).eval()(**BATCH)


def arguments(model, **more):
    """Return arguments of the block, of which the first five can be given by position."""
    hidden_states = torch.randn(8, 2, 32, generator=torch.Generator().manual_seed(3))
    first = {"input_ids": BATCH["input_ids"], "position_ids": BATCH["position_ids"], "hidden_states": hidden_states}
    functions = {name: getattr(model, name) for name in ("embedding", "output_layer", "compute_language_model_loss")}
    rotary = {"rotary_pos_emb": model.rotary_pos_emb(8)}
    return {**first, "attention_mask": BATCH["attention_mask"], "labels": None, **functions, **rotary, **more}


def check_two_mtp_layers():
    # First, because megatron-core sizes its log of MTP losses when it is first used.
    for training in (True, False):
        assert torch.equal(_cpu.gpt_model(2).train(training)(**BATCH), expected())


def check_training_and_evaluation_alternate():
    model = _cpu.gpt_model(1)
    for training in (True, False, True, False):
        model.train(training)
        assert torch.equal(model(**BATCH), expected())
        model(**BATCH, labels=LABELS).mean().backward()


def check_mtp_layers_run_in_training_only_and_log_no_loss():
    runs = []
    model = _cpu.gpt_model(1)
    model.mtp.layers[0].register_forward_hook(lambda *_: runs.append(model.training))
    MTPLossLoggingHelper.tracker.clear()
    with torch.no_grad():
        for training in (False, True, False):
            model.train(training)(**BATCH)
    assert runs == [True]
    assert not MTPLossLoggingHelper.tracker["values"].any()


def check_labels_by_position_and_by_keyword():
    names = list(inspect.signature(ORIGINAL).parameters)[1:6]
    assert names[-1] == "labels"
    for positional in (names, names[:3], ()):
        results = []
        for function in (ORIGINAL, MultiTokenPredictionBlock.forward):
            model = _cpu.gpt_model(1).train()
            kwargs = arguments(model, labels=LABELS)
            function(model.mtp, *[kwargs.pop(name) for name in positional], **kwargs).mean().backward()
            results.append(model.mtp.layers[0].eh_proj.weight.grad)
        assert torch.equal(*results)
        assert results[0].any()


def check_no_labels_by_position_and_by_keyword():
    names = list(inspect.signature(ORIGINAL).parameters)[1:6]
    for training in (True, False):
        model = _cpu.gpt_model(1).train(training)
        for positional in (names, names[:3], ()):
            kwargs = arguments(model)
            output = model.mtp(*[kwargs.pop(name) for name in positional], **kwargs)
            assert torch.equal(output, arguments(model)["hidden_states"])


def check_zero_gradients_whatever_the_values():
    model = _cpu.gpt_model(1).train()
    layer = model.mtp.layers[0]
    layer.final_layernorm.register_forward_hook(lambda _module, _args, output: output + torch.inf)
    kwargs = arguments(model, loss_mask=torch.zeros(2, 8))
    kwargs["hidden_states"].requires_grad_()
    model.mtp(**kwargs).sum().backward()
    assert torch.equal(kwargs["hidden_states"].grad, torch.ones(8, 2, 32))
    assert not any(parameter.grad.any() for parameter in model.mtp.parameters())


def check_missing_and_unknown_arguments_are_the_original_errors():
    model = _cpu.gpt_model(1).eval()
    for kwargs in ({}, {"input_ids": 1}, {**arguments(model), "unknown": 1}):
        errors = []
        for function in (ORIGINAL, MultiTokenPredictionBlock.forward):
            try:
                function(model.mtp, **kwargs)
            except TypeError as error:
                errors.append(str(error))
        assert len(errors) == 2
        assert errors[0] == errors[1]


def check_ddp_with_overlapped_gradient_reduction():
    """The reason for the zero gradients: DDP waits for the gradient of every parameter."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    model = _cpu.gpt_model(1)
    options = DistributedDataParallelConfig(overlap_grad_reduce=True, bucket_size=1000)
    parallel = DistributedDataParallel(model.config, options, model).train()
    parallel.zero_grad_buffer()
    parallel(**BATCH).square().mean().backward()
    parallel.finish_grad_sync()


def check_static_inference_context():
    from megatron.core.inference.contexts import StaticInferenceContext

    results = []
    for layers in (1, None):
        model = _cpu.gpt_model(layers).eval()
        with torch.no_grad():
            results.append(model(**BATCH, inference_context=StaticInferenceContext(2, 16), runtime_gather_output=True))
    assert torch.equal(*results)


checks = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
failed = {}
for name, check in checks.items():
    try:
        check()
    except Exception:
        failed[name] = traceback.format_exc()
        sys.stderr.write(failed[name])
print(json.dumps({"checks": len(checks), "failed": failed}))
