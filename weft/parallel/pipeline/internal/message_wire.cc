// Transfers between stages as messages. Gradients have known shapes, so their receives start at
// once. Activations may have any shapes, so a message has two parts:
//
//   expect_activations()   starts to receive the header
//   progress(), take()     the header is there: makes the tensors, starts to receive them
//   take()                 waits for the tensors
//
// Messages of one tag between two ranks match in order. Headers, activations and gradients have a
// tag each. So a header can arrive while the tensors of earlier messages are still on their way.
// But the receives of tensors start in the order of messages (closed_).
#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/parallel/pipeline/internal/wire.h"

namespace weft::parallel::internal {
namespace {

constexpr int kHeaders = 0x70690000, kActivations = kHeaders + 1, kGradients = kHeaders + 2;

class MessageWire final : public Wire {
 public:
  explicit MessageWire(Group group) : group_(std::move(group)) {}

  void send_activations(int peer, const Tensors& tensors) override;
  void send_gradients(int peer, const Tensors& tensors) override;
  ArrivalPtr expect_activations(int peer) override;
  ArrivalPtr expect_gradients(int peer, const Tensors& like) override;
  Tensors take(const ArrivalPtr& expected) override;
  void progress() override;
  void finish() override;

 private:
  struct Message : Arrival {
    int peer = -1;
    at::Tensor header;        // of activations
    Group::Work header_work;  // null once the tensors are being received
    Tensors tensors;
    std::vector<Group::Work> works;
  };

  Group::Work post(const at::Tensor& tensor, int peer, int tag, bool sends) const;
  void open(Message& message);
  void wait(const Group::Work& work) const { group_.wait(work, "pipeline"); }

  Group group_;
  std::deque<Group::Work> sends_;
  // By peer: activations whose header has not arrived.
  std::map<int, std::deque<std::shared_ptr<Message>>> closed_;
};

at::Tensor as_tensor(const Header& header) {
  return at::tensor(at::ArrayRef<std::int64_t>(header.data(), header.size()), at::kLong);
}

Group::Work MessageWire::post(const at::Tensor& tensor, int peer, int tag, bool sends) const {
  std::vector<at::Tensor> one{tensor.detach()};
  return sends ? group_.backend().send(one, peer, tag) : group_.backend().recv(one, peer, tag);
}

void MessageWire::send_activations(int peer, const Tensors& tensors) {
  sends_.push_back(post(as_tensor(header_of(tensors)), peer, kHeaders, true));
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) sends_.push_back(post(tensor, peer, kActivations, true));
  }
}

void MessageWire::send_gradients(int peer, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0)
      sends_.push_back(post(tensor, peer, kGradients, true));
  }
}

Wire::ArrivalPtr MessageWire::expect_activations(int peer) {
  auto arrival = std::make_shared<Message>();
  arrival->peer = peer;
  arrival->header = at::empty({kHeaderWords}, at::kLong);
  arrival->header_work = post(arrival->header, peer, kHeaders, false);
  closed_[peer].push_back(arrival);
  return arrival;
}

Wire::ArrivalPtr MessageWire::expect_gradients(int peer, const Tensors& like) {
  auto arrival = std::make_shared<Message>();
  arrival->peer = peer;
  arrival->tensors = gradients_of(like);
  for (const at::Tensor& one : arrival->tensors) {
    if (one.defined() && one.numel() > 0)
      arrival->works.push_back(post(one, peer, kGradients, false));
  }
  return arrival;
}

// Waits for the header and starts to receive the tensors that it describes. In the order of
// messages, since the tensors of all messages of a peer have one tag.
void MessageWire::open(Message& arrival) {
  wait(arrival.header_work);
  arrival.header_work.reset();
  Header header;
  std::copy_n(arrival.header.const_data_ptr<std::int64_t>(), header.size(), header.begin());
  arrival.tensors = tensors_of(header);
  for (const at::Tensor& tensor : arrival.tensors) {
    if (tensor.numel() > 0)
      arrival.works.push_back(post(tensor, arrival.peer, kActivations, false));
  }
}

void MessageWire::progress() {
  for (auto& [peer, waiting] : closed_) {
    while (!waiting.empty() && waiting.front()->header_work->isCompleted()) {
      open(*waiting.front());
      waiting.pop_front();
    }
  }
  while (!sends_.empty() && sends_.front()->isCompleted()) {
    sends_.front()->wait();
    sends_.pop_front();
  }
}

Tensors MessageWire::take(const ArrivalPtr& expected) {
  const auto arrival = std::static_pointer_cast<Message>(expected);
  auto& waiting = closed_[arrival->peer];
  while (arrival->header_work) {  // in order: the contents of earlier messages come first
    open(*waiting.front());
    waiting.pop_front();
  }
  for (const Group::Work& work : arrival->works) wait(work);
  return std::move(arrival->tensors);
}

void MessageWire::finish() {
  for (const Group::Work& work : sends_) wait(work);
  sends_.clear();
}

}  // namespace

std::unique_ptr<Wire> make_message_wire(Group group) {
  return std::make_unique<MessageWire>(std::move(group));
}

}  // namespace weft::parallel::internal
