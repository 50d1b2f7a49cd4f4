// c10d's own NCCL backend, if the libtorch that weft is built with has it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "weft/comm/backend.h"

namespace weft::comm::internal {

// Throws kBadConfig if this build has no NCCL or there is no CUDA device.
void require_nccl(int rank);

// For the ranks that share `store`, with one CUDA device each. It connects in its first operation.
// Throws as require_nccl().
c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store> store, int rank,
                                            int size, const BackendOptions& options);

}  // namespace weft::comm::internal
