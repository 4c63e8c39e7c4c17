"""Puts patches for the fake megatron-core in the place of the real catalogue."""

import torch  # noqa: F401

from mcore_autopatch import catalogue
from mcore_autopatch.declaration import Affected, Patch

MODEL = "megatron.core.models.model"


def tagging(tag):
    """Return a builder whose replacements put ``tag`` in front of the result of the original."""

    def build(original):
        def replacement(*args, **kwargs):
            return (tag, *original(*args, **kwargs))

        return replacement

    return build


def patch(patch_id="one", *, target=MODEL, attributes=("function",), probe=lambda module: True, tag=None, **fields):
    given = dict(title="t", symptom="s", cause="c", effect="e", upstream="u")
    given["affected"] = (Affected(megatron_core=">=0.16,<0.17", source="the row"),)
    given["replacements"] = {attribute: tagging(tag or patch_id) for attribute in attributes}
    return Patch(id=patch_id, target=target, probe=probe, **{**given, **fields})


def use(*patches, broken=None):
    """Let these be the whole catalogue."""
    aside = tuple(
        catalogue.Broken(id=patch_id, origin="somebody 1.0", error=error) for patch_id, error in (broken or {}).items()
    )
    found = catalogue.Catalogue(patches={one.id: one for one in patches}, broken=aside)
    catalogue.load = lambda: found
