#!/usr/bin/env bash
# launch/mpirun.sh RANKS PROGRAM [ARGUMENTS...]
#
# Starts an instance with mpirun and common settings: allows more ranks than cores, which then take turns, no binding to cores, allows root (in
# containers), and gives stopping ranks time to write their reports. MPIEXEC names an mpirun other than the first on the PATH.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: launch/mpirun.sh RANKS PROGRAM [ARGUMENTS...]" >&2
  exit 2
fi
ranks=$1
shift
flags=(--oversubscribe --bind-to none --mca odls_base_sigkill_timeout 5)
if [ "$(id -u)" = 0 ]; then
  flags+=(--allow-run-as-root)
fi
# mpirun refuses to start without ssh or rsh, although it needs neither on one machine.
if ! command -v ssh >/dev/null && ! command -v rsh >/dev/null; then
  export OMPI_MCA_plm_rsh_agent=false
fi
# On one machine ranks need only shared memory, and MPI's TCP transport would listen on every interface. A batch system may place ranks on
# several machines.
if [ -z "${OMPI_MCA_btl:-}${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-}" ]; then
  export OMPI_MCA_btl=self,vader
fi
# A rank that waits in MPI polls. It lets others have its core in between: of this instance, and of other instances, which mpirun does not count.
export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-1}
# Containers often forbid the system call of the shared-memory transport's single-copy mode, which then warns on every rank.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
exec "${MPIEXEC:-mpirun}" "${flags[@]}" -n "$ranks" "$@"
