# What a node has of its own, in its namespaces: `tests/nodes_init.py` runs this.
mount -t tmpfs -o mode=0755 node /run
mount -t tmpfs -o mode=1777 node /dev/shm
mkdir -m 0700 /run/tmp
touch /run/hosts
mount --bind /run/hosts /etc/hosts
ip link set lo up
