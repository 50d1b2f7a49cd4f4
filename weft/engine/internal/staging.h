// Copies, in memory that peers can read, of tensors that lie elsewhere: gradients that autograd did not allocate (expanded, sparse, shared,
// or made before the allocator was installed), and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/engine/internal/ledger.h"
#include "weft/net/memory/host.h"

namespace weft::parallel::internal {

class Staging {
 public:
  Staging(net::Host& host, std::vector<at::Tensor> params);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Each parameter's copy is made once and used again.
  net::Host::Token copy(int param, const at::Tensor& gradient);
  net::Host::Token zeros(int param);
  // The step is over. With `results`, the copies hold them, and the used parameters' grad() get them; then the copies count for nothing.
  void put_back(const std::vector<bool>& used, bool results);

 private:
  at::Tensor of(int param);

  net::Host& host_;
  std::vector<at::Tensor> params_;
  std::vector<std::byte*> blocks_;  // by parameter
  std::vector<int> in_use_;         // of this step
};

// Rank 0's buffers, which the other ranks take over after each step.
class SharedBuffers {
 public:
  SharedBuffers(net::Host& host, std::vector<at::Tensor> buffers) : host_(host), buffers_(std::move(buffers)) {}

  bool empty() const { return buffers_.empty(); }
  // Rank 0: writes their places into the ledger, from `first` on.
  void show(Ledger& ledger, int first);
  // The others, once rank 0 has published.
  void take(const Ledger& ledger, int first);

 private:
  at::Tensor shared_like(const at::Tensor& like);

  net::Host& host_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;  // of those that peers cannot read
};

}  // namespace weft::parallel::internal
