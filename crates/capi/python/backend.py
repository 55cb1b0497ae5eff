"""Builds the wheel: the package, the C library beside it, and what describes them (PEP 427, PEP 517).

A wheel is a zip file with a list of its files, so this needs no other package. The same sources give the same bytes.

`SWITCHYARD_STORE_LIBRARY` is the library to take. Without it, cargo builds the library.

    python3 backend.py DIRECTORY        # or: pip wheel .
"""

import base64
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

NAME = "switchyard_store"
SONAME = "libswitchyard_store.so.0"
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# The first time that a zip file can tell.
TIME = (1980, 1, 1, 0, 0, 0)


def _version():
    """That of the workspace."""
    manifest = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', manifest, re.MULTILINE).group(1)


def _library():
    given = os.environ.get("SWITCHYARD_STORE_LIBRARY")
    if given:
        return pathlib.Path(given)
    build = ["cargo", "build", "--release", "-p", "switchyard-capi", "--message-format=json-render-diagnostics"]
    said = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    made = [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]
    files = [name for message in made for name in message.get("filenames") or []]
    return pathlib.Path(next(name for name in files if name.endswith("/libswitchyard_store.so")))


def _stripped(library):
    """The library without what only debuggers read: nine tenths of it. Names of functions stay."""
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(shutil.copy(library, directory))
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-debug", copy], check=True)
        return copy.read_bytes()


def _tag():
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"py3-none-{platform}"


def _metadata():
    return f"""Metadata-Version: 2.1
Name: {NAME.replace("_", "-")}
Version: {_version()}
Summary: Storage areas: logs, queues, maps and trees that are durable when a call returns
License: Apache-2.0
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
"""


def _wheel():
    return f"Wheel-Version: 1.0\nGenerator: switchyard backend\nRoot-Is-Purelib: false\nTag: {_tag()}\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    sources = [*sorted((HERE / NAME).glob("*.py")), HERE / NAME / "py.typed"]
    files = {f"{NAME}/{path.name}": path.read_bytes() for path in sources}
    files[f"{NAME}/{SONAME}"] = _stripped(_library())
    info = f"{NAME}-{_version()}.dist-info"
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = _wheel().encode()
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = f"{info}/RECORD"
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[record] = ("".join(lines) + f"{record},,\n").encode()
    name = f"{NAME}-{_version()}-{_tag()}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.endswith(SONAME) else 0o100644) << 16
            wheel.writestr(entry, data)
    return name


class UnsupportedOperation(Exception):
    """What a frontend expects where there is no such thing (PEP 517)."""


def build_sdist(sdist_directory, config_settings=None):
    raise UnsupportedOperation("the wheel is built from the whole project: there is no sdist of this part")


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(build_wheel(sys.argv[1]))
