// What goes over the borders of stages. With each micro-batch's activations goes a header that says their shapes, so that these may change;
// gradients have the shapes of what they are gradients of. Everything is asynchronous but for take() and finish().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kHeaderWords = 64;  // int64: number of tensors; of each its type, whether it needs a gradient, dimensions, sizes
constexpr int kFirstTag = 0x70690000;      // of the three that are used

class Wire {
 public:
  explicit Wire(Group group);

  // A message that is expected.
  class Arrival;
  using ArrivalPtr = std::shared_ptr<Arrival>;

  // Begin to send. The tensors must not change any more. Throws Error(kInvalidArgument) for more tensors than a header can describe.
  void send_activations(int peer, const Tensors& tensors);
  void send_gradients(int peer, const Tensors& tensors);  // those that are defined
  // Begin to receive; between two ranks messages of each kind match in order. `like`: what they are gradients of, undefined where none is.
  ArrivalPtr expect_activations(int peer);
  ArrivalPtr expect_gradients(int peer, const Tensors& like);
  // Waits. Activations need gradients as their senders' do.
  Tensors take(const ArrivalPtr& arrival);
  // Goes on with what has arrived in part: call it between computations.
  void progress();
  // Until all that was sent is gone.
  void finish();

 private:
  Group::Work post(const at::Tensor& tensor, int peer, int tag, bool sends) const;
  void open(Arrival& arrival);
  void wait(const Group::Work& work) const;

  Group group_;
  std::deque<Group::Work> sends_;
  std::map<int, std::deque<ArrivalPtr>> closed_;  // by peer: activations whose header is not here yet
};

}  // namespace weft::parallel::internal
