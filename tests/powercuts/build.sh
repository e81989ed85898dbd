#!/bin/sh
# Makes the guest in a folder: `build.sh FOLDER` leaves `disk`, `vmlinuz` and `initrd` there.
# Needs root, mmdebstrap, mke2fs, and a mirror of Debian's.
set -e
here=$(dirname "$0")
root=$1/root
rm -rf "$root"
mmdebstrap --quiet --variant=minbase \
    --include=iproute2,kmod,linux-image-cloud-amd64,postgresql,redis-server \
    bookworm "$root"
install "$here/guest.sh" "$root/sbin/guest"
chroot "$root" sh -e <<'EOF'
mount -t proc proc /proc
trap 'umount /proc' EXIT
echo MODULES=list >/etc/initramfs-tools/conf.d/guest
printf 'virtio_pci\nvirtio_blk\next4\n' >/etc/initramfs-tools/modules
rm /usr/share/initramfs-tools/hooks/udev /usr/share/initramfs-tools/scripts/*/udev  # slow to start
update-initramfs -u
setpriv --reuid=postgres --regid=postgres --clear-groups --reset-env \
    sh -c '/usr/lib/postgresql/*/bin/initdb -A trust -E UTF8 --locale=C.UTF-8 /var/lib/postgresql/data'
echo 'host all all all trust' >>/var/lib/postgresql/data/pg_hba.conf
EOF
mv "$root"/boot/vmlinuz-* "$1/vmlinuz"
mv "$root"/boot/initrd.img-* "$1/initrd"
rm -rf "$root"/usr/share/doc "$root"/usr/share/locale "$root"/var/cache/apt "$root"/var/lib/apt
mke2fs -q -t ext4 -b 4096 -d "$root" "$1/disk.new" 3G
mv "$1/disk.new" "$1/disk"
rm -rf "$root"
