#!/usr/bin/env python3
"""An OCI image of a program without libraries, written without docker: `scripts/image.py PROGRAM ARCH VERSION FILE`.

FILE is an image layout in one archive: `docker load -i FILE` (25 or later), `podman load -i FILE`, or
`skopeo copy oci-archive:FILE docker://REGISTRY/hawser`. The image is that of packaging/Dockerfile, target `hawser`.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile

USER = 65532
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
TIME = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def add(archive, name, content=None, mode=0o755, link=None, owner=0):
    """A file, or a link, or without both a directory."""
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.uid, entry.gid = mode, TIME, owner, owner
    if content is not None:
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
        return
    entry.type, entry.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.DIRTYPE, "")
    archive.addfile(entry)


def layer(program):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as root:
        for name in ("etc", "etc/hawser", "etc/pgbouncer", "etc/ssl", "etc/ssl/certs", "run", "usr", "usr/bin"):
            add(root, name)
        add(root, "run/hawser", owner=USER)
        add(root, "tmp", mode=0o1777)
        add(root, "etc/passwd", f"root:x:0:0::/:/nologin\nnonroot:x:{USER}:{USER}::/:/nologin\n".encode(), 0o644)
        add(root, "etc/group", f"root:x:0:\nnonroot:x:{USER}:\n".encode(), 0o644)
        if os.path.exists(f"/{CERTIFICATES}"):
            add(root, CERTIFICATES, pathlib.Path(f"/{CERTIFICATES}").read_bytes(), 0o644)
        add(root, "usr/bin/hawser", pathlib.Path(program).read_bytes())
        add(root, "usr/bin/pgbouncer", link="hawser")
    return out.getvalue()


def main():
    program, arch, version, target = sys.argv[1:]
    blobs = {}

    def blob(kind, content):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    files = layer(program)
    config = {
        "architecture": arch, "os": "linux",
        "config": {"User": f"{USER}:{USER}", "Entrypoint": ["/usr/bin/hawser"], "Cmd": ["serve", "-c", "/etc/hawser/hawser.toml"],
                   "ExposedPorts": {"6432/tcp": {}, "9632/tcp": {}}, "StopSignal": "SIGTERM", "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(files).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(files, 6, mtime=TIME))],
    }
    named = blob("manifest.v1+json", json.dumps(manifest).encode())
    named["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"docker.io/library/hawser:{version}"}
    index = {"schemaVersion": 2, "manifests": [named]}
    with tarfile.open(target, "w") as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644)
        add(archive, "index.json", json.dumps(index).encode(), 0o644)
        for name, content in blobs.items():
            add(archive, name, content, 0o644)


if __name__ == "__main__":
    main()
