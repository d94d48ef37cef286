"""The Helm chart: what it renders is what Kubernetes takes, and what a worker reads."""

import json
import pathlib
import re
import subprocess

import programs
import pytest
import yaml
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from streameval.config.load import load
from streameval.config.settings import SECRETS

pytestmark = pytest.mark.servers
ROOT = pathlib.Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/streameval"
FULL = {
    "replicas": 3,
    "config": {"kafka": "k:9092", "forward": [{"topic": "calls", "profile": "segment"}]},
    "secrets": {
        "redis_password": {"secret": "redis", "key": "password"},
        "user_token": {"secret": "tokens", "key": "users"},
    },
    "certificates": {"ca.pem": {"secret": "ca", "key": "ca.crt"}},
    "files": {"claim": "shared"},
    "checks": {"checks": [{"name": "sane", "kind": "events_sane"}]},
    "podLabels": {"team": "recommendations"},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "env": [{"name": "TZ", "value": "UTC"}],
    "image": {"pullSecrets": [{"name": "registry"}]},
    "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
    "monitoring": {
        "podMonitor": True,
        "rules": True,
        "dashboards": True,
        "labels": {"release": "prometheus"},
    },
    "keda": {"enabled": True},
    "forward": {"replicas": 2},
}
# Kinds of operators, whose schemas are theirs.
OPERATORS = {"PodMonitor", "PrometheusRule", "ScaledObject"}


def helm(*words):
    programs.need_pinned("helm")
    command = [programs.HELM, *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rendered(folder, values):
    (folder / "values.yaml").write_text(json.dumps(values))
    text = helm("template", "shop", CHART, "--values", folder / "values.yaml")
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


@pytest.fixture(scope="module")
def refused():
    """What Kubernetes' strict schema finds wrong with an object."""
    programs.need_pinned("helm")
    folder = max(programs.kubernetes_schemas())

    def retrieve(uri):
        return Resource.from_contents(
            json.loads((folder / uri.rpartition("/")[2]).read_text()),
            default_specification=DRAFT7,
        )

    def problems(one):
        group, _, version = one["apiVersion"].rpartition("/")
        name = "-".join(filter(None, (one["kind"], group.split(".")[0], version))).lower()
        schema = json.loads((folder / f"{name}.json").read_text())
        validator = Draft7Validator(schema, registry=Registry(retrieve=retrieve))
        return [error.message for error in validator.iter_errors(one)]

    return problems


def test_helm_finds_nothing_to_complain_about(tmp_path):
    (tmp_path / "values.yaml").write_text(json.dumps(FULL))
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)
    assert "0 chart(s) failed" in helm(
        "lint", "--strict", CHART, "--values", tmp_path / "values.yaml"
    )


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
def test_kubernetes_takes_what_is_rendered(values, refused, tmp_path):
    found = rendered(tmp_path, values)
    wrong = {
        name: problems
        for name, one in found.items()
        if one["kind"] not in OPERATORS and (problems := refused(one))
    }
    assert wrong == {}
    assert ("StatefulSet", "shop") in found
    broken = found["StatefulSet", "shop"]
    broken["spec"]["template"]["spec"]["containers"][0]["arg"] = []
    assert "'arg' was unexpected" in str(refused(broken)), "the schema is strict"


def test_a_worker_reads_the_configuration_that_is_rendered(tmp_path):
    maps = rendered(tmp_path, FULL)["ConfigMap", "shop"]["data"]
    (tmp_path / "checks.yaml").write_text(maps["checks.yaml"])
    text = maps["streameval.yaml"].replace("/etc/streameval", str(tmp_path))
    (tmp_path / "streameval.yaml").write_text(text)
    settings = load(tmp_path / "streameval.yaml")
    assert settings.kafka == "k:9092"
    assert (settings.outcomes, str(settings.snapshots)) == ("/data/outcomes", "/data/snapshots")
    assert settings.forward[0].topic == "calls"
    assert settings.redis_url() == "redis://redis:6379/0"


def test_a_pod_has_its_secrets_as_files_and_writes_nowhere(tmp_path):
    found = rendered(tmp_path, FULL)
    for kind, name in (("StatefulSet", "shop"), ("Deployment", "shop-forward")):
        pod = found[kind, name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        named = {each["name"]: each.get("value") for each in container["env"]}
        for key in FULL["secrets"]:
            assert key in SECRETS
            path = named[f"STREAMEVAL_{key.upper()}_FILE"]
            assert path.rpartition("/")[0] in {
                each["mountPath"] for each in container["volumeMounts"]
            }
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["volumes"]}
        assert pod["terminationGracePeriodSeconds"] > 15, "the longest shutdown_deadline"
    assert "STREAMEVAL_KAFKA_INSTANCE_ID" not in named, "its group has no named members"


def test_rules_and_dashboards_are_those_of_deploy(tmp_path):
    found = rendered(tmp_path, FULL)
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    assert found["PrometheusRule", "shop"]["spec"] == rules
    for path in (ROOT / "deploy/grafana").glob("*.json"):
        data = found["ConfigMap", f"shop-dashboard-{path.stem}"]["data"]
        assert json.loads(data[path.name]) == json.loads(path.read_text())


def test_the_values_of_the_docs_render(refused, tmp_path):
    text = (ROOT / "docs/operations.md").read_text()
    (block,) = re.findall(r"^```text\n(image: .*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = rendered(tmp_path, yaml.safe_load(block))
    assert refused(found["StatefulSet", "shop"]) == []
    settings = tmp_path / "streameval.yaml"
    settings.write_text(found["ConfigMap", "shop"]["data"]["streameval.yaml"])
    assert load(settings, {"kafka_password": "of the file"}).kafka == "kafka:9093"


def test_every_value_of_the_chart_says_what_it_is():
    """A comment stands above each key, but above one that only holds others."""
    before = ""
    for line in (CHART / "values.yaml").read_text().splitlines():
        if re.match(r" *\w+: .", line):
            assert before.startswith("#"), line
        before = line.strip()


def test_the_plain_manifests_are_what_the_chart_renders():
    """`make manifests` writes them."""
    text = helm("template", "streameval", CHART)
    assert (ROOT / "deploy/kubernetes.yaml").read_text() == text
