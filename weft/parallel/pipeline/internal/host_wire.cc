// Transfers between stages on ranks of one host: a queue of slots in shared memory for each
// neighbor and kind. A slot has the addresses of the tensors in the sender's memory. The receiver
// copies them and stamps the slot, and the sender then releases them.
//
//   sender     header, tokens ─► sent = number        taken ≥ number: releases the tensors
//   receiver            sent == number ─► copies the tensors ─► taken = number
//
// Both stamps are release stores that the other rank reads by acquire loads. So the rest of a slot
// and the tensors are plain memory. The sender writes them before `sent`, and again after `taken`.
//
// A queue has room for the messages of a step. finish() waits until all of them are copied, so the
// slots are free again when the next step begins. send() waits only if that bound is exceeded.
//
// Threads: one thread of each rank. It copies when it needs the data; no other thread helps.
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>

#include "weft/comm/allocator.h"
#include "weft/net/memory/host.h"
#include "weft/observe/trace.h"
#include "weft/parallel/pipeline/internal/wire.h"

namespace weft::parallel::internal {
namespace {

constexpr const char* kOperation = "pipeline";
constexpr std::size_t kMaxTensors = (kHeaderWords - 1) / 3;

enum class Kind { kActivations, kGradients };

struct Slot {
  // Numbers (from 1) of the last message put into the slot, and of the last message copied.
  std::atomic<std::uint64_t> sent, taken;
  Header header;
  std::array<net::Host::Token, kMaxTensors> tokens;  // of the tensors that have elements
};

class HostWire final : public Wire {
 public:
  HostWire(const Group& group, int messages)
      : group_(group),
        host_(*group_.host()),
        timeout_(group_.timeout()),
        capacity_(static_cast<std::uint64_t>(messages)) {
    const auto queues = static_cast<std::size_t>(host_.world()) * 4;
    slots_ = reinterpret_cast<Slot*>(host_.share(queues * capacity_ * sizeof(Slot), timeout_));
    host_.meet(kOperation, timeout_);  // from which it knows how to wait
  }

  void send_activations(int peer, const Tensors& tensors) override {
    send(peer, Kind::kActivations, tensors);
  }
  void send_gradients(int peer, const Tensors& tensors) override {
    Tensors defined;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) defined.push_back(tensor);
    }
    send(peer, Kind::kGradients, defined);
  }

  ArrivalPtr expect_activations(int peer) override { return expect(peer, Kind::kActivations, {}); }
  ArrivalPtr expect_gradients(int peer, const Tensors& like) override {
    return expect(peer, Kind::kGradients, like);
  }

  Tensors take(const ArrivalPtr& expected) override {
    const auto& message = static_cast<const Message&>(*expected);
    const observe::TraceScope scope("comm", "pipeline:take");
    Slot& slot = this->slot(message.peer, host_.rank(), message.kind, message.number);
    host_.check(kOperation);
    await([&] { return slot.sent.load(std::memory_order_acquire) == message.number; }, message.peer,
          message.number);
    Tensors tensors =
        message.kind == Kind::kActivations ? tensors_of(slot.header) : gradients_of(message.like);
    copy(slot, message.peer, tensors);
    slot.taken.store(message.number, std::memory_order_release);
    host_.notify();
    return tensors;
  }

  void progress() override {
    while (!unread_.empty() && unread_.front().is_taken()) unread_.pop_front();
  }

  void finish() override {
    for (const Unread& unread : unread_)
      await([&] { return unread.is_taken(); }, unread.peer, unread.number);
    unread_.clear();
  }

 private:
  struct Message : Arrival {
    Message(int peer_, Kind kind_, std::uint64_t number_, Tensors like_)
        : peer(peer_), kind(kind_), number(number_), like(std::move(like_)) {}
    int peer;
    Kind kind;
    std::uint64_t number;
    Tensors like;
  };
  // Messages that a peer has not copied yet.
  struct Unread {
    const Slot* slot;
    std::uint64_t number;
    int peer;
    Tensors tensors;

    bool is_taken() const { return slot->taken.load(std::memory_order_acquire) >= number; }
  };

  Slot& slot(int from, int to, Kind kind, std::uint64_t number) const {
    const int world = host_.world(), onward = (from + 1) % world, back = (from + world - 1) % world;
    WEFT_CHECK(to == onward || to == back, "the ranks of the two stages are not neighbors");
    const auto queue = static_cast<std::size_t>(from) * 4 + (to == onward ? 0 : 2) +
                       static_cast<std::size_t>(kind);
    return slots_[queue * capacity_ + (number - 1) % capacity_];
  }

  void copy(const Slot& slot, int peer, const Tensors& tensors) {
    const at::NoGradGuard no_grad;
    WEFT_CHECK(slot.header[0] == std::count_if(tensors.begin(), tensors.end(),
                                               [](const at::Tensor& one) { return one.defined(); }),
               "a stage sends gradients of other tensors than it received");
    const net::Host::Touch touch(host_, kOperation);
    std::size_t next = 0;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.numel() == 0) continue;
      std::byte* const there = host_.at(peer, slot.tokens.at(next++));
      tensor.detach().copy_(at::from_blob(there, tensor.sizes(),
                                          tensor.options().device(at::kCPU).requires_grad(false)));
      host_.count_moved(static_cast<std::uint64_t>(tensor.nbytes()));
    }
  }

  template <class Ready>
  void await(const Ready& ready, int peer, std::uint64_t number) {
    host_.wait_for(peer, ready, kOperation, number, timeout_);
  }

  void send(int peer, Kind kind, const Tensors& tensors) {
    const observe::TraceScope scope("comm", "pipeline:send", bytes_of(kind, tensors));
    host_.check(kOperation);
    const std::uint64_t number = ++sent_[{peer, kind}];
    Slot& slot = this->slot(host_.rank(), peer, kind, number);
    if (number > capacity_)
      await([&] { return slot.taken.load(std::memory_order_acquire) == number - capacity_; }, peer,
            number);
    slot.header = header_of(tensors);
    Unread unread{&slot, number, peer, {}};
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      unread.tensors.push_back(comm::readable(host_, tensor.detach().cpu()));
      slot.tokens.at(unread.tensors.size() - 1) = host_.token(unread.tensors.back().data_ptr());
    }
    slot.sent.store(number, std::memory_order_release);
    host_.notify();
    unread_.push_back(std::move(unread));
  }

  static std::int64_t bytes_of(Kind kind, const Tensors& tensors) {
    std::int64_t bytes = kind == Kind::kActivations ? sizeof(Header) : 0;
    for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
    return bytes;
  }

  ArrivalPtr expect(int peer, Kind kind, const Tensors& like) {
    return std::make_shared<Message>(peer, kind, ++expected_[{peer, kind}], like);
  }

  const Group group_;
  net::Host& host_;
  const std::chrono::nanoseconds timeout_;
  const std::uint64_t capacity_;
  Slot* slots_ = nullptr;  // by sender, neighbor, kind, number
  // Number of messages so far, by peer and kind.
  std::map<std::pair<int, Kind>, std::uint64_t> sent_, expected_;
  std::deque<Unread> unread_;
};

}  // namespace

std::unique_ptr<Wire> make_host_wire(const Group& group, int messages) {
  return std::make_unique<HostWire>(group, messages);
}

}  // namespace weft::parallel::internal
