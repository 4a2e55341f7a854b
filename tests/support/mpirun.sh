#!/bin/sh
# mpirun.sh MPIEXEC RANKS PROGRAM [ARGUMENT...]
#
# Starts a test on several ranks of this machine: more ranks than cores are fine, and so is root (in a container). Both
# are refused by Open MPI unless asked for.
set -eu
mpiexec=$1
ranks=$2
shift 2
as_root=
if [ "$(id -u)" -eq 0 ]; then
  as_root=--allow-run-as-root
fi
# Containers often forbid the system call behind vader's single-copy mode, which then warns on every rank.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# $as_root is unquoted on purpose: empty means no argument.
exec "$mpiexec" $as_root --oversubscribe -n "$ranks" "$@"
