"""Checks the manifests, as a recent kubectl renders them, against the schemas of Kubernetes and against rules that the
schemas do not express.

Resources that are not Kubernetes' own (PodMonitor, PrometheusRule, LeaderWorkerSet, RayCluster, JobSet) have no schema
here: pods and jobs inside of them are checked like those of Kubernetes, the rest by the assertions below.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import expressions
import kubernetes_validate
import yaml
from manifests import (
    KUBERNETES,
    REFERENCE,
    RENDERED,
    ROOT,
    SERVER_IMAGE,
    TOOLS,
    expand,
    name_of,
    of_kind,
    render,
    selects,
    templates,
)

# The first version with all features that the manifests use (sidecars, ReadWriteOncePod), and a recent one.
VERSIONS = ("1.29", "1.36")
OWN_RESOURCES = {
    "PodMonitor": ("monitoring.coreos.com/v1", {"selector", "podMetricsEndpoints"}),
    "PrometheusRule": ("monitoring.coreos.com/v1", {"groups"}),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", {"replicas", "leaderWorkerTemplate"}),
    "RayCluster": ("ray.io/v1", {"headGroupSpec", "workerGroupSpecs"}),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", {"replicatedJobs"}),
    "ScaledObject": ("keda.sh/v1alpha1", {"scaleTargetRef", "triggers", "minReplicaCount", "maxReplicaCount"}),
    "Issuer": ("cert-manager.io/v1", set()),
    "Certificate": ("cert-manager.io/v1", {"secretName", "issuerRef"}),
}
# The images of this project's own pods. The other pods are examples and stand for the user's own.
OURS = ("routing-replay-server", "redis")
CLIENT_ROLES = {"rollout", "trainer", "operator"}


def each_rendered(test):
    """Runs a test on each overlay and example."""

    @functools.wraps(test)
    def run(self):
        for directory in RENDERED:
            with self.subTest(str(directory.relative_to(KUBERNETES))):
                test(self, directory, render(directory))

    return run


class SchemaTest(unittest.TestCase):
    def test_all_kinds_are_known(self):
        found = {path.name for path in RENDERED}
        self.assertLessEqual({"dev", "prod", "prod-redis", "leaderworkerset", "raycluster", "jobset"}, found)

    @each_rendered
    def test_every_resource_is_valid(self, directory, resources):
        for resource in resources:
            for checked in self.as_kubernetes(resource):
                for version in VERSIONS:
                    try:
                        kubernetes_validate.validate(checked, version, strict=True)
                    except kubernetes_validate.ValidationError as error:
                        self.fail(f"{name_of(resource)} for {version}: {list(error.path)}: {error.message}")

    def as_kubernetes(self, resource):
        if resource["kind"] not in OWN_RESOURCES:
            return [resource]
        api_version, keys = OWN_RESOURCES[resource["kind"]]
        self.assertEqual(resource["apiVersion"], api_version)
        self.assertLessEqual(keys, set(resource["spec"]), name_of(resource))
        metadata = {"name": "template"}
        if resource["kind"] == "JobSet":
            jobs = [job["template"] for job in resource["spec"]["replicatedJobs"]]
            return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **job} for job in jobs]
        return [
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template.body}
            for template in templates([resource])
        ]

    def test_a_wrong_key_is_found(self):
        deployment = render(KUBERNETES / "overlays/dev")
        stateful = of_kind(deployment, "StatefulSet")[0]
        wrong = {**stateful, "spec": {**stateful["spec"], "replica": 2}}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[1], strict=True)

    @each_rendered
    def test_names_are_unique_and_references_exist(self, directory, resources):
        names = [name_of(resource) for resource in resources]
        self.assertEqual(sorted(names), sorted(set(names)))
        for template in templates(resources):
            for volume in template.spec.get("volumes", []):
                if "configMap" in volume:
                    self.assertIn(f"ConfigMap/{volume['configMap']['name']}", names, template.where)
            for account in filter(None, [template.spec.get("serviceAccountName")]):
                self.assertIn(f"ServiceAccount/{account}", names)


class PodTest(unittest.TestCase):
    @each_rendered
    def test_no_container_has_rights_that_it_does_not_need(self, directory, resources):
        for template in templates(resources):
            pod = template.spec.get("securityContext", {})
            self.assertTrue(pod.get("runAsNonRoot"), template.where)
            self.assertGreater(pod.get("runAsUser", 0), 0, template.where)
            self.assertEqual(pod.get("seccompProfile"), {"type": "RuntimeDefault"}, template.where)
            for key in ("hostNetwork", "hostPID", "hostIPC"):
                self.assertNotIn(key, template.spec)
            for container in template.containers():
                context = container.get("securityContext", {})
                where = f"{template.where} {container['name']}"
                self.assertIs(context.get("allowPrivilegeEscalation"), False, where)
                self.assertEqual(context.get("capabilities"), {"drop": ["ALL"]}, where)
                self.assertFalse(context.get("privileged"))
                if container["image"].partition(":")[0].partition("@")[0].rpartition("/")[2] in OURS:
                    self.assertIs(context.get("readOnlyRootFilesystem"), True, where)

    @each_rendered
    def test_commands_are_what_they_are_in_the_pod(self, directory, resources):
        # The kubelet expands $(NAME) and $$ in command lines and variables. So a script with shell variables belongs in
        # a file.
        for template in templates(resources):
            for container in template.containers():
                known = {each["name"] for each in container.get("env", [])}
                values = [each.get("value", "") for each in container.get("env", [])]
                for text in (*container.get("command", []), *container.get("args", []), *values):
                    for found in REFERENCE.finditer(text):
                        self.assertIn(found[1], known, f"{template.where} {container['name']}: {found[0]}")

    def test_expansion_is_the_kubelets(self):
        variables = {"A": "1", "B": "$(A)"}
        expected = {
            "kill -0 $$; $(A) $(C)": "kill -0 $; 1 $(C)",
            "$$(A) $$$$ $(B)": "$(A) $$ $(A)",
            "$(cat $$ $(A) $A $": "$(cat $$ $(A) $A $",
        }
        self.assertEqual({text: expand(text, variables) for text in expected}, expected)

    @each_rendered
    def test_only_rays_own_pods_see_the_api(self, directory, resources):
        for template in templates(resources):
            if template.namesake["kind"] != "RayCluster":
                self.assertIs(template.spec.get("automountServiceAccountToken"), False, template.where)

    @each_rendered
    def test_memory_is_as_much_as_is_asked_for(self, directory, resources):
        for template in templates(resources):
            for container in template.containers():
                resources_of = container.get("resources", {})
                asked, limit = (resources_of.get(key, {}).get("memory") for key in ("requests", "limits"))
                self.assertIsNotNone(limit, f"{template.where} {container['name']}")
                self.assertEqual(asked, limit)
                self.assertIn("cpu", resources_of["requests"])

    @each_rendered
    def test_probes_hit_declared_ports(self, directory, resources):
        for template in templates(resources):
            for container in template.containers():
                ports = container.get("ports", [])
                names, numbers = {port.get("name") for port in ports}, {port["containerPort"] for port in ports}
                self.assertEqual(len(names), len(ports), "every port has a name")
                for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                    for check in ("grpc", "httpGet", "tcpSocket"):
                        if check in container.get(kind, {}):
                            port = container[kind][check]["port"]
                            self.assertIn(port, numbers if isinstance(port, int) else names, template.where)

    @each_rendered
    def test_servers_are_probed_as_they_answer(self, directory, resources):
        for template in templates(resources):
            for container in filter(lambda c: SERVER_IMAGE.match(c["image"]), template.containers()):
                asked = {kind: container[kind]["grpc"]["service"] for kind in container if kind.endswith("Probe")}
                expected = {"startupProbe": "live", "livenessProbe": "live", "readinessProbe": "ready"}
                if container.get("restartPolicy") == "Always":  # The readiness of a sidecar is part of that of its pod.
                    del expected["readinessProbe"]
                self.assertEqual(asked, expected, directory)

    @each_rendered
    def test_mounted_volumes_exist(self, directory, resources):
        for template in templates(resources):
            volumes = {volume["name"] for volume in template.spec.get("volumes", [])}
            claims = template.namesake["spec"].get("volumeClaimTemplates", [])
            volumes |= {claim["metadata"]["name"] for claim in claims}
            mounted = set()
            for container in template.containers():
                paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
                self.assertEqual(len(paths), len(set(paths)))
                mounted |= {mount["name"] for mount in container.get("volumeMounts", [])}
            self.assertEqual(mounted, volumes, template.where)

    @each_rendered
    def test_topology_is_spread_over_the_pods_themselves(self, directory, resources):
        for template in templates(of_kind(resources, "StatefulSet")):
            constraints = template.spec["topologySpreadConstraints"]
            keys = {constraint["topologyKey"] for constraint in constraints}
            self.assertEqual(keys, {"topology.kubernetes.io/zone", "kubernetes.io/hostname"})
            for constraint in constraints:
                self.assertTrue(selects(constraint["labelSelector"], template.labels))
                # Without `Honor`, a node that is being drained still counts in the spread although it takes no pods.
                # Then the pods that leave it may fit on no other node.
                if constraint["whenUnsatisfiable"] == "DoNotSchedule":
                    self.assertEqual(constraint["nodeTaintsPolicy"], "Honor", template.where)

    @each_rendered
    def test_a_pod_that_is_not_ready_does_not_keep_its_node(self, directory, resources):
        for budget in of_kind(resources, "PodDisruptionBudget"):
            self.assertEqual(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow", name_of(budget))

    @each_rendered
    def test_a_job_can_be_applied_again(self, directory, resources):
        for job in of_kind(resources, "Job"):
            self.assertIn("ttlSecondsAfterFinished", job["spec"], "the template of a Job cannot be changed")


class SelectorTest(unittest.TestCase):
    @each_rendered
    def test_controllers_select_their_own_pods(self, directory, resources):
        for template in templates(of_kind(resources, "StatefulSet") + of_kind(resources, "Deployment")):
            self.assertTrue(selects(template.namesake["spec"]["selector"], template.labels), template.where)

    @each_rendered
    def test_services_budgets_and_policies_select_something(self, directory, resources):
        pods = templates(resources)
        selectors = [(each, each["spec"]["selector"], each["spec"]["ports"]) for each in of_kind(resources, "Service")]
        selectors += [(each, each["spec"]["selector"], []) for each in of_kind(resources, "PodDisruptionBudget")]
        selectors += [(each, each["spec"]["podSelector"], []) for each in of_kind(resources, "NetworkPolicy")]
        for resource, selector, ports in selectors:
            chosen = [pod for pod in pods if selects(selector, pod.labels)]
            self.assertTrue(chosen, name_of(resource))
            for port in ports:
                for pod in chosen:
                    declared = {each["name"] for container in pod.containers() for each in container.get("ports", [])}
                    self.assertIn(port["targetPort"], declared, name_of(resource))

    @each_rendered
    def test_every_server_has_a_budget_and_a_policy(self, directory, resources):
        for template in templates(of_kind(resources, "StatefulSet")):
            for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
                chosen = [each for each in of_kind(resources, kind) if selects(each["spec"][key], template.labels)]
                self.assertTrue(chosen, f"{template.where} has no {kind}")

    @each_rendered
    def test_policies_name_ports_that_exist_and_let_in_who_must_come(self, directory, resources):
        pods = templates(resources)
        declared = {
            port["name"] for pod in pods for container in pod.containers() for port in container.get("ports", [])
        }
        for policy in of_kind(resources, "NetworkPolicy"):
            for rule in policy["spec"].get("ingress", []) + policy["spec"].get("egress", []):
                for port in rule.get("ports", []):
                    self.assertTrue(port["port"] == 53 or port["port"] in declared, name_of(policy))
            for rule in policy["spec"].get("ingress", []):
                self.assertTrue(rule.get("from"), "a rule without a source lets everybody in")

    def test_policies_let_clients_to_the_service_and_nobody_to_the_probes(self):
        rules = of_kind(render(KUBERNETES / "overlays/prod"), "NetworkPolicy")[0]["spec"]["ingress"]
        reached = {}
        for rule in rules:
            for source in rule["from"]:
                for role in CLIENT_ROLES:
                    if "namespaceSelector" not in source and selects(
                        source["podSelector"], {"routing-replay-role": role}
                    ):
                        reached.setdefault(role, set()).update(port["port"] for port in rule["ports"])
        self.assertEqual(reached["rollout"], {"grpc", "direct"})
        self.assertEqual(reached["trainer"], {"grpc", "direct"})
        self.assertEqual(reached["operator"], {"grpc", "direct", "http-ops"})

    @each_rendered
    def test_clients_of_the_examples_have_a_role_and_an_endpoint(self, directory, resources):
        of_servers = any(name_of(each) == "StatefulSet/routing-replay" for each in resources)
        if directory.parent.name != "examples" or of_servers or not templates(resources):
            return
        found = 0
        for template in templates(resources):
            for container in template.containers():
                maps = [each.get("configMapRef", {}).get("name") for each in container.get("envFrom", [])]
                direct = [each["name"] for each in container.get("env", [])]
                if "routing-replay-client" in maps or "ROUTING_REPLAY_ENDPOINT" in direct:
                    found += 1
                    self.assertIn(template.labels.get("routing-replay-role"), CLIENT_ROLES, template.where)
        self.assertGreater(found, 0)

    @each_rendered
    def test_pods_are_scraped_where_they_answer(self, directory, resources):
        for monitor in of_kind(resources, "PodMonitor"):
            chosen = [pod for pod in templates(resources) if selects(monitor["spec"]["selector"], pod.labels)]
            self.assertTrue(chosen)
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                for pod in chosen:
                    ports = {port["name"] for container in pod.containers() for port in container["ports"]}
                    self.assertIn(endpoint["port"], ports)
                    encrypted = any(e["name"] == "RR_TLS_CERT" for c in pod.containers() for e in c["env"])
                    self.assertEqual(endpoint["scheme"], "https" if encrypted else "http")

    def test_a_line_of_the_overlay_lets_kube_prometheus_stack_choose_them(self):
        for name in ("prod", "prod-redis"):
            with tempfile.TemporaryDirectory() as directory:
                shutil.copytree(ROOT / "deploy", directory, dirs_exist_ok=True)
                overlay = Path(directory, "kubernetes/overlays", name)
                file = overlay / "kustomization.yaml"
                file.write_text(file.read_text().replace("# labels: [", "labels: ["))
                resources = render(overlay)
            for kind in ("PodMonitor", "PrometheusRule"):
                (resource,) = of_kind(resources, kind)
                self.assertEqual(resource["metadata"]["labels"]["release"], "kube-prometheus-stack")
            # Nobody can change the selector of an existing StatefulSet, so the new label must not become part of it.
            for template in templates(of_kind(resources, "StatefulSet")):
                self.assertNotIn("release", template.namesake["spec"]["selector"]["matchLabels"])


class CommandTest(unittest.TestCase):
    def test_kubectl_knows_what_the_documents_say_to_it(self):
        def helped(*words: str) -> str:
            done = subprocess.run([TOOLS / "kubectl", *words], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
            return done.stdout

        found = expressions.commands("deploy/OPERATING.md", "deploy/kubernetes/README.md")
        self.assertGreater(len(found), 8)
        for command in found:
            words = command.partition(" -- ")[0].split()[1:]
            verbs = list(itertools.takewhile(lambda word: re.fullmatch("[a-z]+", word), words))
            known = set(re.findall(r"--[a-z-]+", helped(*verbs, "--help") + helped("options")))
            self.assertLessEqual({word.partition("=")[0] for word in words if word.startswith("--")}, known, command)


class ScaleTest(unittest.TestCase):
    def test_one_scaler_for_a_server(self):
        hpa = of_kind(render(KUBERNETES / "overlays/prod-redis"), "HorizontalPodAutoscaler")
        resources = render(KUBERNETES / "examples/keda")
        self.assertEqual(of_kind(resources, "HorizontalPodAutoscaler"), [])
        (scaler,) = of_kind(resources, "ScaledObject")
        own = scaler["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self.assertEqual(own, hpa[0]["spec"]["behavior"])
        for trigger in scaler["spec"]["triggers"]:
            shown = set().union(*map(expressions.metrics, expressions.of_panels(expressions.panels())))
            self.assertLessEqual(expressions.metrics(trigger["metadata"]["query"]), shown)

    @each_rendered
    def test_only_servers_that_share_a_store_are_scaled(self, directory, resources):
        for scaler in of_kind(resources, "HorizontalPodAutoscaler") + of_kind(resources, "ScaledObject"):
            target = scaler["spec"]["scaleTargetRef"]
            chosen = [each for each in resources if name_of(each) == f"{target['kind']}/{target['name']}"]
            self.assertEqual(len(chosen), 1)
            self.assertNotIn("replicas", chosen[0]["spec"])
            variables = {each["name"]: each.get("value") for each in templates(chosen)[0].containers()[0]["env"]}
            self.assertTrue(variables["RR_STORE"].startswith("rediss://"))

    @each_rendered
    def test_clients_state_the_servers_that_there_are(self, directory, resources):
        if directory.parent.name != "overlays":
            return
        services = {each["metadata"]["name"]: each for each in of_kind(resources, "Service")}
        (server,) = [each for each in of_kind(resources, "StatefulSet") if name_of(each).endswith("/routing-replay")]
        (clients,) = [
            each for each in of_kind(resources, "ConfigMap") if name_of(each).endswith("/routing-replay-client")
        ]
        endpoint = clients["data"]["ROUTING_REPLAY_ENDPOINT"]
        headless = server["spec"]["serviceName"]
        self.assertEqual(services[headless]["spec"]["clusterIP"], "None")
        if endpoint.startswith("shard:"):
            members = endpoint.removeprefix("shard:").split(",")
            name = server["metadata"]["name"]
            expected = [f"{name}-{i}.{headless}:7400" for i in range(server["spec"]["replicas"])]
            self.assertEqual(members, expected)
            # Clients must not connect to an arbitrary server, and each server must have a name even when it is not
            # ready.
            ports = {each["name"] for each in services[name]["spec"]["ports"]}
            self.assertTrue(ports.isdisjoint({"grpc", "direct"}))
            self.assertIs(services[headless]["spec"].get("publishNotReadyAddresses"), True)
        else:
            host, _, port = endpoint.removeprefix("dns:///").partition(":")
            self.assertIn(int(port), [each["port"] for each in services[host]["spec"]["ports"]])
        # Servers with a shared store are behind one dns: endpoint. Servers without one must be listed in a shard:
        # endpoint, unless there is only one server.
        if endpoint.startswith("dns:///"):
            self.assertTrue(of_kind(resources, "HorizontalPodAutoscaler"))
        elif not endpoint.startswith("shard:"):
            self.assertEqual(server["spec"]["replicas"], 1)

    @each_rendered
    def test_production_is_encrypted_and_pinned(self, directory, resources):
        if not directory.name.startswith("prod"):
            return
        (template,) = [each for each in templates(resources) if each.where == "StatefulSet/routing-replay"]
        container = template.containers()[0]
        self.assertIn("@sha256:", container["image"])
        variables = {each["name"] for each in container["env"]}
        self.assertLessEqual({"RR_TLS_CERT", "RR_TLS_KEY", "RR_TLS_CLIENT_CA"}, variables)
        self.assertNotIn("RR_INSECURE", variables)

    def test_tokens_are_asked_for_and_shown_over_tls(self):
        resources = render(KUBERNETES / "overlays/prod-tokens")
        (template,) = templates(of_kind(resources, "StatefulSet"))
        variables = {each["name"] for each in template.containers()[0]["env"]}
        self.assertLessEqual({"RR_TOKEN_FILE", "RR_TLS_CERT"}, variables)
        (clients,) = [each for each in resources if name_of(each) == "ConfigMap/routing-replay-client"]
        keys = {"ROUTING_REPLAY_ENDPOINT", "ROUTING_REPLAY_CACERT"}
        self.assertLessEqual(keys, set(clients["data"]))
        self.assertEqual(clients["data"]["ROUTING_REPLAY_TOKEN_FILE"], "/etc/routing-replay-token/token")

    def test_each_role_has_a_token_of_its_own(self):
        found = {}
        for directory in RENDERED:
            for template in templates(render(directory)):
                secrets = {each["name"]: each.get("secret") for each in template.spec.get("volumes", [])}
                for container in template.containers():
                    if not any("configMapRef" in each for each in container.get("envFrom", [])):
                        continue
                    paths = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
                    token = secrets[paths["/etc/routing-replay-token"]]
                    # The Secret must be optional, because it does not exist in a deployment without tokens.
                    self.assertTrue(token["optional"], template.where)
                    found.setdefault(template.labels["routing-replay-role"], set()).add(token["secretName"])
        self.assertEqual(found, {role: {f"routing-replay-token-{role}"} for role in CLIENT_ROLES})

    def test_the_operators_pod_has_the_image_of_its_overlay(self):
        for directory in filter(lambda each: each.parent.name == "overlays", RENDERED):
            pods = {each.where: each.containers()[0] for each in templates(render(directory))}
            server, operator = (
                pods[each] for each in ("StatefulSet/routing-replay", "Deployment/routing-replay-operator")
            )
            self.assertEqual(operator["image"], server["image"], directory)

    def test_teams_of_other_namespaces_are_named(self):
        policies = of_kind(render(KUBERNETES / "overlays/prod-tokens"), "NetworkPolicy")
        others = [
            source["namespaceSelector"]
            for policy in policies
            for rule in policy["spec"].get("ingress", [])
            for source in rule["from"]
            if "namespaceSelector" in source and {"protocol": "TCP", "port": "grpc"} in rule["ports"]
        ]
        self.assertTrue(others)
        for selector in others:
            self.assertTrue(selector["matchExpressions"][0]["values"], "an empty selector lets all namespaces in")


class CopyTest(unittest.TestCase):
    """Some texts exist in two files, because kustomize cannot take both from one. They must be equal."""

    def test_alerts_of_the_operator_are_those_of_the_file(self):
        rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())
        (rule,) = of_kind(render(KUBERNETES / "overlays/prod"), "PrometheusRule")
        self.assertEqual(rule["spec"], rules, "run tests/deploy/prometheus_rule.py")

    def test_servers_have_the_rights_that_the_store_asks_for(self):
        said = (ROOT / "server/store/README.md").read_text()
        (rights,) = re.findall(r"^`(\+@read [^`]*)`", said, re.MULTILINE)
        script = (KUBERNETES / "components/redis-cluster/start.sh").read_text()
        self.assertIn(f'"{rights}"', script)

    def test_redis_is_set_as_for_compose(self):
        def settings(path: Path, leaving_out: set[str]) -> set[str]:
            lines = {line for line in path.read_text().splitlines() if line and not line.startswith("#")}
            return {line for line in lines if line.split()[0] not in leaving_out}

        compose = settings(ROOT / "deploy/compose/redis.conf", {"bind"})
        pods = settings(KUBERNETES / "components/redis-cluster/redis.conf", {"port", "dir", "protected-mode"})
        names = {"cluster-preferred-endpoint-type hostname"}  # Compose has no certificates.
        self.assertEqual({line for line in pods if not line.startswith("tls-")} - names, compose)


if __name__ == "__main__":
    unittest.main()
