#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/error.h"
#include "weft/comm/internal/cuda/nccl.h"

namespace weft::comm::internal {

void require_nccl(int rank) {
  throw Error(Errc::kBadConfig,
              "transport nccl: weft was built with a libtorch without CUDA, or without nccl.h; use "
              "transport auto, or build weft with both",
              {"init", rank});
}

c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store> /*store*/, int rank,
                                            int /*size*/, const BackendOptions& /*options*/) {
  require_nccl(rank);
  return {};
}

}  // namespace weft::comm::internal
