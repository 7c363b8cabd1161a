"""What the release under audit had to do with each space it is tested in."""

from __future__ import annotations

from collections.abc import Mapping

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.audit_images.spec import OF_SEVERAL_SITES
from fedsynth.stages.pseudo_features.spec import CLASSIFIER

CONDITION = "the generator's own condition: an image that follows its condition is found by it, so no independent test"
RANKING = "its predictions ranked the candidates, so no independent test"
FILTER = "it filtered the candidates, so what it says of them is in part by construction"
NEITHER = "neither the generator's condition nor used by the selection"
UNKNOWN = "not known: the set is a union of several sites"


def uses(inputs: Mapping[str, Artifact], spaces: Mapping[str, str | None]) -> dict[str, str]:
    """By space, what the generator and the selection used of it; stages are told apart by their keys.

    Args:
        inputs: Of the audit.
        spaces: The input each space was made by; None for one without a network.
    """
    manifest = inputs["released"].manifest
    given, settings = manifest.get("inputs") or {}, manifest["settings"]
    private = (manifest.get("notes") or {}).get("private") or {}
    condition = {given.get("features"), *private.get("condition_made_of", [])}
    what = {
        "classifier": RANKING if settings.get("ranking") == "predicates" else "",
        "reidentifier": FILTER if settings.get("filter") not in (None, "none") else "",
    }

    def used(role: str) -> list[str]:
        if role not in inputs:
            return []
        key, said = inputs[role].key, []
        if key in condition:
            said.append(CONDITION)
        if role in ("classifier", "reidentifier") and what[role] and given.get(role) == key:
            said.append(what[role])
        return said

    found = {}
    for space, role in spaces.items():
        # The features of the chosen encoder may be those of the classifier that ranked the candidates.
        roles = [role] if role else []
        if role == "features" and space == CLASSIFIER:
            roles.append("classifier")
        found[space] = "; ".join(dict.fromkeys(said for role in roles for said in used(role))) or NEITHER
        if roles and manifest["kind"] in OF_SEVERAL_SITES:
            found[space] = UNKNOWN
    return found
