#include "weft/comm/internal/cuda/nccl.h"

#include <c10/cuda/CUDAFunctions.h>

#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "weft/base/error.h"

namespace weft::comm::internal {

namespace {

std::string text_of(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

}  // namespace

void require_nccl(int rank) {
  // Of libtorch. The layout of c10d's classes depends on it.
  const std::uint64_t version = torch::cuda::nccl::version();
  const int major = static_cast<int>(version >> 32),
            minor = static_cast<int>(version >> 16 & 0xffff);
  if (major != NCCL_MAJOR || minor != NCCL_MINOR) {
    throw Error(Errc::kBadConfig,
                "transport nccl: weft was built with nccl.h " + text_of(NCCL_MAJOR, NCCL_MINOR) +
                    ", but libtorch with NCCL " + text_of(major, minor) +
                    "; build weft with the nccl.h of that version (NCCL_HOME)",
                {"init", rank});
  }
  if (c10::cuda::device_count() == 0)
    throw Error(Errc::kBadConfig,
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
