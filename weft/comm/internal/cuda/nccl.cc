#include "weft/comm/internal/cuda/nccl.h"

#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "weft/base/error.h"

namespace weft::comm::internal {

void require_nccl(int rank) {
  if (c10::cuda::device_count() == 0)
    throw Error(Errc::kUnavailable,
                "transport nccl: there is no CUDA device; use transport auto, which needs none",
                {"init", rank});
}

c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store> store, int rank,
                                            int size, const BackendOptions& options) {
  require_nccl(rank);
  auto how = c10d::ProcessGroupNCCL::Options::create();
  how->timeout = options.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, std::move(how));
}

}  // namespace weft::comm::internal
