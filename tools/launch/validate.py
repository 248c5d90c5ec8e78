"""Validates JobSets against the schema of JobSet's custom resource, as kubectl and the API server
do before its own rules.

    kubectl get crd jobsets.jobset.x-k8s.io -o yaml > runs/crd.yaml  # or from
    config/components/crd/bases of JobSet python -m tools.launch.validate runs/crd.yaml
    launch/jobset_gpu.yaml launch/jobset_tpu.yaml

An unknown field is an error. Needs the package jsonschema.
"""

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml


def strict(schema: Any) -> Any:
    """Returns a schema in which an object of listed properties has no others."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(value) for name, value in schema.items()}
    known = isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema
    if known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


def errors(crd: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Lists what is wrong with a document of one of the resource's versions."""
    group, _, version = document["apiVersion"].partition("/")
    assert group == crd["spec"]["group"] and document["kind"] == crd["spec"]["names"]["kind"]
    schema = next(
        v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == version
    )
    schema["properties"]["metadata"] = {"type": "object"}  # the API server's own
    found = jsonschema.Draft7Validator(strict(schema)).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


if __name__ == "__main__":
    resource = yaml.safe_load(Path(sys.argv[1]).read_text())
    failed = False
    for path in sys.argv[2:]:
        wrong = errors(resource, yaml.safe_load(Path(path).read_text()))
        failed |= bool(wrong)
        print(f"{path}: " + ("; ".join(wrong) or "valid"))
    sys.exit(failed)
