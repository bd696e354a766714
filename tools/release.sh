#!/usr/bin/env bash
# Makes the files of a release in dist/, which it replaces: the wheels, the wheel of the reader, the
# source distribution, the Debian packages, an archive of the site, the software bill of materials,
# NOTICE, and SHA256SUMS. Publishes nothing: docs/releasing.md states the steps.
#
#   tools/release.sh [--arch x86_64|aarch64] [--python PYTHON]... VERSION
#   tools/release.sh --check-reproducible [--arch ...] [--python ...] VERSION
#
#   --arch ARCH            the wheel for x86_64 only, or also the one for aarch64; without it, the
#                          second is built if its compiler is installed
#   --python PYTHON        also the wheel of this free-threaded Python
#   --check-reproducible   makes them again in a clone in another folder, without ccache, and compares
#                          them with SHA256SUMS in dist/. Only .cache/wheel, which has the static
#                          libraries, and .venv are shared.
#
# Refuses if VERSION is not that of the sources, if CHANGELOG.md has no section of it, or if a file
# differs from the commit. Needs tools/setup.sh --docs. Complete output: build-release/release.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
Die() { echo "release: $*" >&2; exit 1; }
Usage() { sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit "$1"; }

arch=x86_64
if command -v aarch64-linux-gnu-g++ >/dev/null; then arch=aarch64; fi
check=0
pythons=()
version=
while (($#)); do
  case $1 in
    -h | --help) Usage 0 ;;
    --arch) arch=${2:-}; (($# > 1)) && shift ;;
    --python) pythons+=(--python "${2:-}"); (($# > 1)) && shift ;;
    --check-reproducible) check=1 ;;
    -*) Usage 2 >&2 ;;
    *) version=$1 ;;
  esac
  shift
done
[[ $version && $arch =~ ^(x86_64|aarch64)$ ]] || Usage 2 >&2
for project in pyproject.toml tools/reference_reader/pyproject.toml; do
  found=$(sed -n 's/^version = "\(.*\)"/\1/p' "$project")
  [[ $found == "$version" ]] || Die "the version in $project is $found, and not $version"
done
grep -qE "^## ${version//./\\.}( |$)" CHANGELOG.md || Die "CHANGELOG.md has no section of $version"
[[ -z $(git status --porcelain) ]] || Die "files differ from the commit: $(git status --short)"
export CAIRN_BUILD_DIR=$PWD/build-release
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)

if ((check)); then
  [[ -f dist/SHA256SUMS ]] || Die "dist/ has no release to compare with"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  git clone --quiet . "$work/another-folder"
  cd "$work/another-folder"
  mkdir .cache
  ln -s "$OLDPWD/.cache/wheel" .cache/wheel
  ln -s "$OLDPWD/.venv" .venv
  CCACHE_DISABLE=1 tools/release.sh --arch "$arch" "${pythons[@]}" "$version"
  diff "$OLDPWD/dist/SHA256SUMS" dist/SHA256SUMS || Die "the second build differs"
  echo "release: the second build is equal"
  exit 0
fi

build=build-release
dist=$build/dist
rm -rf "$build"
mkdir -p "$dist"
log=$build/release.log
Logged() {
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    Die "failed: $* (complete log: $log)"
  fi
}
# Archive NAME FOLDER: a .tar.gz of a folder that depends only on its contents.
Archive() {
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX --transform "s,^\.,$1," -C "$2" -c . | gzip -9n >"$dist/$1.tar.gz"
}

tools/build-wheel.sh "$dist"
if [[ $arch == aarch64 ]]; then tools/build-wheel.sh --arch aarch64 "$dist"; fi
for ((i = 0; i < ${#pythons[@]}; i += 2)); do
  tools/build-wheel.sh "${pythons[@]:i:2}" "$dist"
done
Logged .venv/bin/python -c 'import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])' "$dist"

# The Debian packages, and the Python package whose docstrings are in the site. The CUDA layer is only
# in wheels, so that the packages do not depend on what this machine has.
Logged cmake --preset release -B "$build" -DCAIRN_BUILD_TESTS=OFF -DCMAKE_UNITY_BUILD=ON \
  -DCAIRN_ENABLE_CUDA=OFF "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$PWD/= -ffile-prefix-map=../="
Logged cmake --build "$build" -j "$(nproc)"
Logged cpack -G DEB --config "$build/CPackConfig.cmake" -B "$build/packages"
cp "$build"/packages/*.deb "$dist"
Logged tools/docs.sh
Archive "cairn-site-$version" "$build/site/html"

python3 tools/wheel/sbom.py "$version" >"$dist/cairn-$version.cdx.json"
cp NOTICE "$dist"
chmod 644 "$dist"/*
(cd "$dist" && sha256sum -- * >SHA256SUMS)
rm -rf dist
mv "$dist" dist
echo "release: $(find dist -type f | wc -l) files of $version in dist/ (${SECONDS} s)"
