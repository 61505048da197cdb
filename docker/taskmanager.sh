#!/bin/sh
# A TaskManager in a container. It takes the first free name of tm-1, tm-2, ... on the disk that it
# shares with the others, and with the name what a TaskManager before it has finished under it. The
# name is taken as long as the process lives, whatever ends it.
set -eu
disk=${HOLDOVER_IO_TMP_DIRS:?}
number=1
while [ "$number" -le 999 ]; do
    exec 9>"$disk/tm-$number.taken"
    if flock --nonblock 9; then
        # exec: signals reach the TaskManager, and no shell.
        exec holdover taskmanager -D "taskmanager.resource-id=tm-$number" \
            -D "taskmanager.host=$(hostname)" "$@"
    fi
    number=$((number + 1))
done
echo "holdover-taskmanager: no name from tm-1 to tm-999 is free in $disk" >&2
exit 1
