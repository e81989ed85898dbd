#!/bin/sh
# The guest's first process: becomes the server that the kernel's command line names.
server() {
    user=$1
    shift
    exec setpriv --reuid="$user" --regid="$user" --clear-groups --reset-env "$@"
}
modprobe virtio_net
hostname guest
echo '127.0.0.1 localhost guest' >/etc/hosts
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
mkdir -p /run/postgresql /run/redis /dev/shm
mount -t tmpfs tmpfs /dev/shm
chmod 1777 /run/postgresql /dev/shm /tmp
cd /tmp
# Commas stand for the spaces between arguments.
set -- $(sed 's/.* serve=\([^ ]*\).*/\1/; s/,/ /g' /proc/cmdline)
name=$1
shift
case $name in
postgres) server postgres /usr/lib/postgresql/*/bin/postgres -D /var/lib/postgresql/data -i "$@" ;;
redis) server redis redis-server --bind 0.0.0.0 --protected-mode no --dir /var/lib/redis "$@" ;;
esac
