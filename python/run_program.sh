#!/bin/sh
# Runs the program of this name in the package cairn. `pip install` puts copies of this script on
# the PATH as kv-dump, kv-admin and kv-bench. A program of a wheel is not there itself, because it
# finds the libraries of the wheel relative to its own file, and where a package is relative to the
# PATH depends on the version of Python and on the options of pip.
self=$0
if [ -L "$self" ]; then self=$(readlink -f "$self"); fi
bin=${self%/*}
for packages in "$bin"/../lib/python3*/site-packages "$bin"/../lib/python3*/dist-packages \
  "$bin"/..; do
  program=$packages/cairn/_programs/${self##*/}
  if [ -x "$program" ]; then exec "$program" "$@"; fi
done
echo "${self##*/}: found no package cairn near $bin; install it again with pip" >&2
exit 2
