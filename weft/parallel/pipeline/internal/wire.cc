#include "weft/parallel/pipeline/internal/wire.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace weft::parallel::internal {
namespace {

constexpr int kHeaders = kFirstTag, kActivations = kFirstTag + 1, kGradients = kFirstTag + 2;

at::Tensor header_of(const Tensors& tensors) {
  std::vector<std::int64_t> words{static_cast<std::int64_t>(tensors.size())};
  for (const at::Tensor& tensor : tensors) {
    words.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    words.push_back(tensor.requires_grad() ? 1 : 0);
    words.push_back(tensor.dim());
    for (const std::int64_t size : tensor.sizes()) words.push_back(size);
  }
  WEFT_REQUIRE(static_cast<std::int64_t>(words.size()) <= kHeaderWords,
               "pipeline: a stage hands on " + std::to_string(tensors.size()) +
                   " tensors, more than a header describes (1 + 3 and the dimensions for each are at most " + std::to_string(kHeaderWords) +
                   "); join some");
  words.resize(kHeaderWords);
  return at::tensor(words, at::kLong);
}

Tensors tensors_of(const at::Tensor& header) {
  const std::int64_t* word = header.const_data_ptr<std::int64_t>();
  Tensors tensors(static_cast<std::size_t>(*word++));
  for (at::Tensor& tensor : tensors) {
    const auto type = static_cast<at::ScalarType>(word[0]);
    const bool needs_gradient = word[1] != 0;
    const std::int64_t dims = word[2];
    tensor = at::empty({word + 3, static_cast<std::size_t>(dims)}, type).requires_grad_(needs_gradient);
    word += 3 + dims;
  }
  return tensors;
}

}  // namespace

class Wire::Arrival {
 public:
  int peer = -1;
  at::Tensor header;        // of activations
  Group::Work header_work;  // null once the rest is being received
  Tensors tensors;
  std::vector<Group::Work> works;
};

Wire::Wire(Group group) : group_(std::move(group)) {}

Group::Work Wire::post(const at::Tensor& tensor, int peer, int tag, bool sends) const {
  std::vector<at::Tensor> one{tensor.detach()};
  return sends ? group_.backend().send(one, peer, tag) : group_.backend().recv(one, peer, tag);
}

void Wire::wait(const Group::Work& work) const { group_.wait(work, "pipeline"); }

void Wire::send_activations(int peer, const Tensors& tensors) {
  sends_.push_back(post(header_of(tensors), peer, kHeaders, true));
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) sends_.push_back(post(tensor, peer, kActivations, true));
  }
}

void Wire::send_gradients(int peer, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) sends_.push_back(post(tensor, peer, kGradients, true));
  }
}

Wire::ArrivalPtr Wire::expect_activations(int peer) {
  auto arrival = std::make_shared<Arrival>();
  arrival->peer = peer;
  arrival->header = at::empty({kHeaderWords}, at::kLong);
  arrival->header_work = post(arrival->header, peer, kHeaders, false);
  closed_[peer].push_back(arrival);
  return arrival;
}

Wire::ArrivalPtr Wire::expect_gradients(int peer, const Tensors& like) {
  auto arrival = std::make_shared<Arrival>();
  arrival->peer = peer;
  for (const at::Tensor& one : like) {
    arrival->tensors.push_back(one.defined() ? at::empty(one.sizes(), one.options().requires_grad(false)) : one);
    if (one.defined() && one.numel() > 0) arrival->works.push_back(post(arrival->tensors.back(), peer, kGradients, false));
  }
  return arrival;
}

// Its header is here, and those of all before it.
void Wire::open(Arrival& arrival) {
  wait(arrival.header_work);
  arrival.header_work.reset();
  arrival.tensors = tensors_of(arrival.header);
  for (const at::Tensor& tensor : arrival.tensors) {
    if (tensor.numel() > 0) arrival.works.push_back(post(tensor, arrival.peer, kActivations, false));
  }
}

void Wire::progress() {
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

Tensors Wire::take(const ArrivalPtr& arrival) {
  auto& waiting = closed_[arrival->peer];
  while (arrival->header_work) {  // in order: the contents of those before come first
    open(*waiting.front());
    waiting.pop_front();
  }
  for (const Group::Work& work : arrival->works) wait(work);
  return std::move(arrival->tensors);
}

void Wire::finish() {
  for (const Group::Work& work : sends_) wait(work);
  sends_.clear();
}

}  // namespace weft::parallel::internal
