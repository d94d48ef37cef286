"""Make everything of a release in `dist`: packages, chart, image, list of packages, checksums.

    make release ARGS=--dry-run     # nothing is refused, no tag, no image

Without `--dry-run` the tree is clean, the changelog dates the version, and the commit gets a tag.
What is then to be uploaded is printed: nothing leaves this machine by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HELM = ROOT / ".cache/helm"


def run(*command: object) -> str:
    """Run a command of ours; return what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def version() -> str:
    """Return the version of the package."""
    text = (ROOT / "streameval/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None, "the package has a version"
    return found[1]


def section(wanted: str) -> tuple[str, str]:
    """Return the heading of a version in the changelog, and what is below it."""
    text = (ROOT / "CHANGELOG.md").read_text()
    below = rf"^## ({re.escape(wanted)}\b[^\n]*)\n(.*?)(?=^## |\Z)"
    found = re.search(below, text, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section {wanted}: write one")
    return found[1], found[2].strip() + "\n"


def refuse(wanted: str, heading: str) -> None:
    """Refuse a release that could not be made again."""
    if run("git", "status", "--porcelain"):
        sys.exit("the tree has changes: commit them first")
    if not re.fullmatch(rf"{re.escape(wanted)} \(\d{{4}}-\d\d-\d\d\)", heading):
        sys.exit(f"CHANGELOG.md: date the section: ## {wanted} (YYYY-MM-DD)")
    if run("git", "tag", "--list", f"v{wanted}"):
        sys.exit(f"v{wanted} is tagged already: raise __version__ in streameval/__init__.py")


def image(wanted: str, into: Path) -> None:
    """Build the image into a file, by buildah or docker."""
    name = f"streameval:{wanted}"
    if shutil.which("buildah"):
        run("buildah", "build", "--file", "deploy/Dockerfile", "--tag", name, ".")
        run("buildah", "push", name, f"oci-archive:{into}/streameval-{wanted}-image.tar")
    elif shutil.which("docker"):
        run("docker", "build", "--file", "deploy/Dockerfile", "--tag", name, ".")
        run("docker", "save", "--output", into / f"streameval-{wanted}-image.tar", name)
    else:
        sys.exit("buildah or docker is needed for the image")


def main() -> None:
    """Make the release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="refuse nothing; no tag, no image")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder, made anew")
    options = parser.parse_args()
    into: Path = options.into
    wanted = version()
    heading, changes = section(wanted)
    if not options.dry_run:
        refuse(wanted, heading)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    run(sys.executable, "-m", "build", "--outdir", into, ".")
    versions = "--version", wanted, "--app-version", wanted
    run(HELM / "helm", "package", "deploy/helm/streameval", *versions, "--destination", into)
    (into / f"streameval-{wanted}.tgz").rename(into / f"streameval-chart-{wanted}.tgz")
    sbom = "cyclonedx_py", "requirements", "deploy/requirements.lock", "--output-reproducible"
    run(HELM / "python/bin/python", "-m", *sbom, "-o", into / f"streameval-{wanted}-sbom.json")
    (into / "CHANGES.md").write_text(changes)
    if not options.dry_run:
        image(wanted, into)
    sums = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}"
        for each in sorted(into.iterdir())
    ]
    (into / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(*sums, sep="\n")
    if options.dry_run:
        return
    run("git", "tag", "--annotate", f"v{wanted}", "--message", f"streameval {wanted}")
    print(f"\nv{wanted} is tagged. To upload:")
    print(f"  git push origin v{wanted}")
    print("  twine upload dist/*.whl dist/streameval-*.tar.gz")
    print(f"  skopeo copy oci-archive:dist/streameval-{wanted}-image.tar docker://REGISTRY/...")
    print(f"  helm push dist/streameval-chart-{wanted}.tgz oci://REGISTRY/...")


if __name__ == "__main__":
    main()
