#!/bin/bash
# image.sh DIR: makes the guest of t_06_nvme_guest.sh in DIR: `vmlinuz`, Debian's stock kernel, and `initramfs`, with its
# NVMe/TCP host, this machine's own nvme-cli, fio and file system tools, and `init`, which runs the test.
#
# Both are made again only when this directory or one of the tools has changed. Ends with 77, and why on the last line,
# if this machine cannot make them: not Debian on amd64, or the kernel cannot be downloaded.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
PATH=$PATH:/usr/sbin:/sbin

# From the smallest: the kernel for virtual machines first.
kernels=(linux-image-cloud-amd64 linux-image-amd64)
tools=(nvme fio mkfs.ext4 e2fsck mkfs.xfs xfs_repair blkdiscard)
modules=(virtio_pci virtio_net nvme-tcp xfs crc32c-intel)

skip() { echo "skipped: $*"; exit 77; }

[[ $(dpkg --print-architecture 2>/dev/null) == amd64 ]] || skip "the guest is made of Debian packages for amd64"
for tool in busybox depmod "${tools[@]}"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done

# apt_get ARGUMENT…: with package lists of its own, if it is the second attempt, so that it needs no root.
apt_get() { apt-get "${apt_options[@]}" "$@"; }
apt_options=()

# download_kernel: the package that the first of `kernels` that there is depends on, into kernel.deb.
download_kernel() {
    local name package
    for name in "${kernels[@]}"; do
        package=$(apt-cache "${apt_options[@]}" depends "$name" 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -1)
        [[ -n $package ]] || continue
        rm -rf download
        mkdir download
        (cd download && apt_get --quiet download "$package") || continue
        mv download/*.deb kernel.deb
        rmdir download
        return 0
    done
    return 1
}

if [[ ! -s kernel.deb ]] && ! download_kernel; then
    # The machine's lists may be missing or outdated.
    mkdir -p apt/lists/partial apt/cache/archives/partial
    apt_options=(-o "Dir::State::Lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache")
    { apt_get --quiet update && download_kernel; } || skip "no kernel package can be downloaded (${kernels[*]})"
    rm -rf apt
fi

# What the image depends on: this directory, the kernel, and the tools as they are installed.
state=$(cat "$here"/* <(stat -c '%n %s %Y' kernel.deb) \
    <(for tool in busybox "${tools[@]}"; do stat -L -c '%n %s %Y' "$(command -v "$tool")"; done) | sha256sum)
[[ -s initramfs && $(cat state 2>/dev/null) == "$state" ]] && exit 0

rm -rf kernel root state
dpkg-deb -x kernel.deb kernel
version=$(ls kernel/lib/modules)
cp "kernel/boot/vmlinuz-$version" vmlinuz
mkdir -p root/{bin,dev,etc/nvme,mnt,modules,out,proc,sys,tmp,tools}
cp "$(command -v busybox)" root/bin/busybox
cp "$here/init" root/init
chmod +x root/init
[[ ! -f /etc/mke2fs.conf ]] || cp /etc/mke2fs.conf root/etc/

# Modules, each after those that it needs: `init` loads them as their numbers go.
depmod -b kernel "$version"
for module in "${modules[@]}"; do
    modprobe --dirname kernel --set-version "$version" --show-depends "$module" || skip "the kernel has no $module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >modules
number=100
while read -r module; do
    cp "$module" "root/modules/$number-$(basename "$module")"
    number=$(( number + 1 ))
done <modules

# Tools by the name they are called by, libraries where the loader looks.
for tool in "${tools[@]}"; do
    cp -L "$(command -v "$tool")" "root/tools/$tool"
    ldd "root/tools/$tool"
done | grep -o '/[^ ]*' | grep -v : | sort -u >libraries
while read -r library; do
    mkdir -p "root$(dirname "$library")"
    cp -L "$library" "root$library"
done <libraries

# Not compressed: to unpack costs an emulated processor more than the bytes cost the disk.
(cd root && find . | LC_ALL=C sort | busybox cpio -o -H newc) >initramfs 2>/dev/null
rm -rf kernel root modules libraries
echo "$state" >state
