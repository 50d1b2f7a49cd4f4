// What goes over the borders of stages. With each micro-batch's activations goes a header that says
// their shapes, so that these may change; gradients have the shapes of what they are gradients of.
// Nothing waits for the other rank but take() and finish().
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

using Tensors = std::vector<at::Tensor>;

// Number of tensors; of each its type, whether it needs a gradient, dimensions, sizes.
constexpr std::int64_t kHeaderWords = 64;
using Header = std::array<std::int64_t, kHeaderWords>;

// Throws Error(kInvalidArgument) for more tensors than a header can describe.
Header header_of(const Tensors& tensors);
// New tensors, as it describes them.
Tensors tensors_of(const Header& header);
// New tensors for gradients of those that are defined.
Tensors gradients_of(const Tensors& like);

class Wire {
 public:
  virtual ~Wire() = default;

  // A message that is expected.
  class Arrival {
   public:
    virtual ~Arrival() = default;
  };
  using ArrivalPtr = std::shared_ptr<Arrival>;

  // Begin to send. The tensors must not change any more. Throws as header_of().
  virtual void send_activations(int peer, const Tensors& tensors) = 0;
  virtual void send_gradients(int peer, const Tensors& tensors) = 0;  // those that are defined
  // Begin to receive; between two ranks messages of each kind match in order. `like`: what they are
  // gradients of, undefined where none is.
  virtual ArrivalPtr expect_activations(int peer) = 0;
  virtual ArrivalPtr expect_gradients(int peer, const Tensors& like) = 0;
  // Waits. Activations need gradients as their senders' do. Messages of one kind from one rank are
  // taken in order.
  virtual Tensors take(const ArrivalPtr& arrival) = 0;
  // Goes on with what has arrived in part: call it between computations.
  virtual void progress() = 0;
  // Until all that was sent is gone.
  virtual void finish() = 0;
};

// By the group's messages, of tags 0x70690000 to 0x70690002.
std::unique_ptr<Wire> make_message_wire(Group group);
// For ranks that read each other's memory: what is sent stays where it is until the receiver has
// copied it, without another thread. Rank r sends to r + 1 and r - 1 (modulo the ranks), at most
// `messages` of a kind before finish(). Collective.
std::unique_ptr<Wire> make_host_wire(const Group& group, int messages);
// The latter where it can be.
std::unique_ptr<Wire> make_wire(const Group& group, int messages);

}  // namespace weft::parallel::internal
