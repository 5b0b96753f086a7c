#!/usr/bin/env bash
# Makes dist/ of a release: wheel, source distribution, chart, documentation, bill of materials, checksums. Tries the wheel
# on each supported Python of this machine (PYTHONS="3.13" names others), and says what a person has left to do.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
version=${1:?make release VERSION=0.1.0}
bin=.venv/bin
declared=$("$bin/python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
[ "$version" = "$declared" ] || fail "VERSION is $version, and pyproject.toml has $declared. Change the one that is wrong."
grep -q "^## $version " CHANGELOG.md || fail "CHANGELOG.md has no section '## $version'."

rm -rf dist build/release
mkdir -p dist build/release
say "Wheel and source distribution"
"$bin/python" -m cdc.kernels.build
"$bin/uv" build -q --no-build-isolation --sdist --out-dir dist
"$bin/uv" build -q --no-build-isolation --wheel --out-dir dist # not from the sources, which have no compiled kernels
rm -f dist/.gitignore
wheel=$(echo "$PWD/dist/towpath-$version"-*.whl)

say "Chart"
helm=$(scripts/need-helm.sh)
"$helm" lint --quiet --strict deploy/helm/towpath
"$helm" package deploy/helm/towpath --destination build/release >/dev/null
mv "build/release/towpath-$version.tgz" "dist/towpath-chart-$version.tgz"
"$bin/python" -m pytest -q -m '' tests/slow/deploy tests/unit/test_wheel.py tests/unit/test_images.py

say "Documentation"
NO_MKDOCS_2_WARNING=1 "$bin/mkdocs" build -q --strict --site-dir "build/release/towpath-docs-$version"
tar -C build/release -czf "dist/towpath-docs-$version.tar.gz" "towpath-docs-$version"

say "Bill of materials"
"$bin/python" -m venv --without-pip build/release/tools
"$bin/uv" pip install -q --python build/release/tools/bin/python --require-hashes -r requirements/release.txt
sed -e 's/ *\\$//' -e '/^ /d' requirements/dev.txt >build/release/constraints.txt # with hashes uv would ask for one of the wheel
"$bin/python" -m venv --without-pip build/release/installed
"$bin/uv" pip install -q --python build/release/installed/bin/python -c build/release/constraints.txt \
  "$wheel[airflow,kafka,metrics,s3,server,spark,stage,zookeeper]"
build/release/tools/bin/cyclonedx-py environment build/release/installed/bin/python --pyproject pyproject.toml \
  --output-reproducible --of JSON -o "dist/towpath-$version.cdx.json"

pythons=()
for number in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
  if python=$(find_python "$number"); then pythons+=("$python"); else say "Python $number is not on this machine"; fi
done
say "The wheel in empty environments: ${pythons[*]}"
TOWPATH_WHEEL=$wheel TOWPATH_PYTHONS="${pythons[*]}" \
  "$bin/python" -m pytest -v -m '' -p no:cacheprovider --timeout 1800 tests/slow/packaging/test_installed.py

(cd dist && sha256sum -- * >"build-sums" && mv build-sums SHA256SUMS)
say "dist/"
(cd dist && ls -l)

say "Left to a person"
left() { printf -- '- %s\n' "$*"; }
[ -z "$(git status --porcelain 2>&1)" ] || left "this checkout has changes that are not committed: commit them, and make the release again"
grep -q "^## $version (not released)" CHANGELOG.md && left "write the date into the heading of CHANGELOG.md, and make the release again"
grep -q '^\[project.urls\]' pyproject.toml || left "pyproject.toml has no [project.urls]: name the addresses of the repository and of the documentation, and make the release again"
left "git tag -s v$version && git push origin v$version"
left "twine upload dist/*.whl dist/towpath-$version.tar.gz"
left "podman build -f deploy/container/Containerfile -t REGISTRY/towpath:$version . && podman push REGISTRY/towpath:$version"
left "helm push dist/towpath-chart-$version.tgz oci://REGISTRY/charts"
left "a release of the repository with the section of CHANGELOG.md as its notes, and with all of dist/"
left "publish dist/towpath-docs-$version.tar.gz where the documentation is read"
