#!/usr/bin/env bash
# Makes a root file system of another distribution, with taskd's two libraries in its /taskd. As root.
#
#   rootfs.sh FOLDER RELEASE [PACKAGE…]     RELEASE as debootstrap knows it: bullseye (glibc 2.31), bookworm (2.36), …
#
# Half a minute and 200 MB for bullseye. What it makes is used by chroot; many programs want /proc mounted there.
set -euo pipefail
(($# >= 2)) || { sed -n '2,7p' "$0" >&2; exit 2; }
libraries=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../taskd/python/cython_api/libs" && pwd)
folder=$1 release=$2
shift 2
included=$(IFS=,; echo "$*")
[[ -x $folder/bin/sh ]] || debootstrap --variant=minbase ${included:+"--include=$included"} "$release" "$folder" >&2
mkdir -p "$folder/taskd"
cp "$libraries"/libtaskd*.so "$folder/taskd/"
