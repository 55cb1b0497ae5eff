#!/bin/bash
# Installs the library, its header, its pkg-config file and the Python package: what `make install` calls.
#
#   install.sh LIBRARIES      the directory where cargo left libswitchyard_store.so and .a
#
# DESTDIR is put before every path. PREFIX (/usr/local), LIBDIR, INCLUDEDIR and PYTHONDIR may be set; PYTHONDIR= installs no
# Python package.
set -euo pipefail

libraries=${1:?usage: install.sh LIBRARIES}
here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
destdir=${DESTDIR:-}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -1)
# The number is the ABI's: programs that were built with it keep working until it changes.
soname=libswitchyard_store.so.0

python_directory() {
    # Where this Python looks below the prefix, as Debian's looks in dist-packages; or where a Python of the prefix would.
    python3 -c 'import site, sys, sysconfig
looks = [path for path in site.getsitepackages() if path.startswith(sys.argv[1] + "/lib/")]
usual = sysconfig.get_path("purelib", "posix_prefix", vars={"base": sys.argv[1]})
print((looks + [usual])[0])' "$prefix"
}

install -d "$destdir$libdir/pkgconfig" "$destdir$includedir"
install -m 755 "$libraries/libswitchyard_store.so" "$destdir$libdir/libswitchyard_store.so.$version"
ln -sf "libswitchyard_store.so.$version" "$destdir$libdir/$soname"
ln -sf "$soname" "$destdir$libdir/libswitchyard_store.so"
install -m 644 "$libraries/libswitchyard_store.a" "$destdir$libdir/libswitchyard_store.a"
# Without what only debuggers read, most of the files; names of functions stay, for profilers.
strip --strip-debug "$destdir$libdir/libswitchyard_store.so.$version" "$destdir$libdir/libswitchyard_store.a" 2>/dev/null || true
install -m 644 "$here/include/switchyard_store.h" "$destdir$includedir/switchyard_store.h"
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@includedir@|$includedir|" -e "s|@version@|$version|" \
    "$here/switchyard_store.pc.in" >"$destdir$libdir/pkgconfig/switchyard_store.pc"

# The dynamic linker finds the library in its own directories by its cache.
if [[ -z $destdir && $EUID -eq 0 && $libdir =~ ^/usr(/local)?/lib ]] && command -v ldconfig >/dev/null; then
    ldconfig
fi

if [[ -n ${PYTHONDIR-default} ]] && { [[ -n ${PYTHONDIR-} ]] || command -v python3 >/dev/null; }; then
    package=$destdir${PYTHONDIR:-$(python_directory)}/switchyard_store
    install -d "$package"
    install -m 644 "$here"/python/switchyard_store/*.py "$here/python/switchyard_store/py.typed" "$package"
fi
