// Transfers between stages. A header with the shapes accompanies the activations of each
// micro-batch, so that shapes may change. Gradients have the shapes of their tensors. Only take()
// and finish() wait for the other rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "weft/comm/group.h"

namespace weft::parallel::internal {

using Tensors = std::vector<at::Tensor>;

// Number of tensors, and for each its type, requires-gradient flag, dimensions and sizes.
constexpr std::int64_t kHeaderWords = 64;
using Header = std::array<std::int64_t, kHeaderWords>;

// Throws Error(kInvalidArgument) for more tensors than a header can describe.
Header header_of(const Tensors& tensors);
// Allocates the tensors that the header describes.
Tensors tensors_of(const Header& header);
// Allocates gradients for the defined tensors.
Tensors gradients_of(const Tensors& like);

class Wire {
 public:
  virtual ~Wire() = default;

  // An expected message.
  class Arrival {
   public:
    virtual ~Arrival() = default;
  };
  using ArrivalPtr = std::shared_ptr<Arrival>;

  // Start to send. The tensors must not change any more. Throws as header_of().
  virtual void send_activations(int peer, const Tensors& tensors) = 0;
  virtual void send_gradients(int peer, const Tensors& tensors) = 0;  // sends the defined tensors
  // Start to receive. Between two ranks, messages of each kind match in order. `like`: the tensors
  // of the gradients; undefined entries get none.
  virtual ArrivalPtr expect_activations(int peer) = 0;
  virtual ArrivalPtr expect_gradients(int peer, const Tensors& like) = 0;
  // Waits for a message. Activations require gradients as on the sender. Messages of one kind from
  // one rank are taken in order.
  virtual Tensors take(const ArrivalPtr& arrival) = 0;
  // Makes progress on partly received messages. Call it between computations.
  virtual void progress() = 0;
  // Waits until all messages are sent.
  virtual void finish() = 0;
};

// Uses the group's messages, with tags 0x70690000 to 0x70690002.
std::unique_ptr<Wire> make_message_wire(Group group);
// For ranks that read each other's memory: tensors stay in place until the receiver has copied
// them, without an extra thread. Rank r sends to r + 1 and r - 1 (modulo the ranks), at most
// `messages` of a kind before finish(). Collective.
std::unique_ptr<Wire> make_host_wire(const Group& group, int messages);
// Uses shared memory if possible, else messages.
std::unique_ptr<Wire> make_wire(const Group& group, int messages);

}  // namespace weft::parallel::internal
