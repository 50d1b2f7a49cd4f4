#include "weft/comm/backend.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/internal/transport.h"
#include "weft/comm/internal/weft_backend.h"

namespace weft::comm {

using internal::WeftBackend;

c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const BackendOptions& options) {
  const auto make = [options](WeftBackend::StorePtr over, int as, int among, std::chrono::milliseconds timeout) {
    BackendOptions part = options;
    part.timeout = timeout;
    return make_backend(std::move(over), as, among, part);
  };
  return c10::make_intrusive<WeftBackend>(internal::make_engine(internal::meet_at(store, rank, size, options.to_connect()), options), rank,
                                          size, options.timeout, WeftBackend::Origin{store, make});
}

c10::intrusive_ptr<c10d::Backend> make_backend(std::unique_ptr<net::Host> host, std::unique_ptr<net::Endpoint> endpoint,
                                               std::chrono::milliseconds timeout) {
  const int rank = host->rank(), size = host->world();
  return c10::make_intrusive<WeftBackend>(internal::make_direct_engine(std::move(host), std::move(endpoint), timeout), rank, size, timeout);
}

net::Host* host_of(c10d::Backend& backend) {
  auto* weft = dynamic_cast<WeftBackend*>(&backend);
  return weft != nullptr ? weft->host() : nullptr;
}

}  // namespace weft::comm
