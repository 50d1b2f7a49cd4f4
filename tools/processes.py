"""The environment of the processes that tests and benches start."""

import os

# Prefixes of the variables of launchers, which would make a rank of a process. WEFT_: options of
# weft, which would change what a test sees.
FOREIGN = (
    "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC", "PET_", "OMPI_",
    "PMI", "MPI_LOCAL", "MV2_", "SLURM_", "HOROVOD_", "JOB_COMPLETION_INDEX", "WEFT_"
)


def without_launchers(keep=()):
    """This process's environment without variables of launchers. `keep`: prefixes that stay."""
    return {
        name: value for name, value in os.environ.items()
        if name.startswith(keep) or not name.startswith(FOREIGN)
    }


def environment(**more):
    """The environment of a command of a test, with one thread: it starts ranks beside others."""
    return without_launchers() | {"OMP_NUM_THREADS": "1"} | more
