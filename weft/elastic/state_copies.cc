// Copies that survive their rank lie in shared memory, and a rank may die while it writes one.
//
//   slot: step = -1 ─► write the copy ─► bytes, place ─► step (release)
//
// A reader takes a slot only if it has a step (acquire), so it never sees half a copy. The older
// slot is always the one that is written. So at any moment, each rank's newest finished copy is
// readable.
//
// Ranks take copies at the same step, but not at the same moment. When a rank dies, the others may
// have finished a step that it has not. All of them still have the step before, since nobody begins
// a copy before all have ended the last one (a rule of take()).
//
// Across hosts, a copy is a message to a rank elsewhere. Sends are posted before the receives, so
// two ranks that keep each other's copies do not wait for each other.
//
// No lock: a slot has one writer, and readers come when the writer is gone or between two copies.
#include "weft/elastic/state_copies.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/checkpoint/packed.h"
#include "weft/comm/texts.h"
#include "weft/net/memory/host.h"

namespace weft::elastic {
namespace {

using net::Host;

// Tags of messages.
constexpr int kSizeTag = 1, kPartTag = 2;

// A slot's place in shared memory. Its rank writes it; others read it when that rank is gone.
struct Slot {
  std::atomic<std::int64_t> step;  // -1: empty, or being written
  std::int64_t bytes;
  Host::Token memory;  // kNoToken: other ranks cannot read it
};

// Damages a copy, so that tests of recovery must find it.
void flip_a_bit(const at::Tensor& block) {
  block.data_ptr<std::uint8_t>()[block.numel() - block.numel() / 4] ^= 0x10;
}

// The two copies of one part.
class Slots {
 public:
  // `table`: two slots in shared memory.
  explicit Slots(Slot* table) : table_(table) {
    for (int i = 0; i < 2; ++i) {
      new (&table_[i]) Slot;
      table_[i].step.store(-1);
      table_[i].bytes = 0;
      table_[i].memory = Host::kNoToken;
    }
  }

  // Replaces the older copy by `bytes` bytes, which `fill` writes.
  template <class Fill>
  void write(Host* host, std::int64_t step, std::int64_t bytes, const Fill& fill) {
    const int older = table_[0].step.load() <= table_[1].step.load() ? 0 : 1;
    Slot& slot = table_[older];
    at::Tensor& memory = memory_[static_cast<std::size_t>(older)];
    // From here on the slot counts as empty, even if this rank dies at the next instruction.
    slot.step.store(-1, std::memory_order_release);
    if (!memory.defined() || memory.numel() < bytes) {
      memory = at::Tensor();  // freed before the larger one is allocated
      // Some room, so that a state that grows a little keeps its memory.
      memory = at::empty({bytes + bytes / 16}, at::kByte);
    }
    fill(memory.narrow(0, 0, bytes));
    failpoint("copy.middle");
    if (is_broken("copy.middle")) flip_a_bit(memory.narrow(0, 0, bytes));
    slot.bytes = bytes;
    slot.memory = host != nullptr ? host->token(memory.data_ptr()) : Host::kNoToken;
    slot.step.store(step, std::memory_order_release);
  }
  const at::Tensor& memory(int slot) const { return memory_[static_cast<std::size_t>(slot)]; }
  bool is_shared() const {
    return table_[0].memory != Host::kNoToken || table_[1].memory != Host::kNoToken;
  }

 private:
  Slot* const table_;
  std::array<at::Tensor, 2> memory_;
};

// Keeps the memory of these copies, in place of those of the call before.
void keep_until_the_next(std::vector<Slots>& slots) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<Slots>;  // never freed
  const std::lock_guard lock(mutex);
  kept->swap(slots);
}

std::vector<std::vector<int>> hosts_of(const Group& world) {
  if (const auto* const split = world.split(); split != nullptr) return split->hosts;
  std::vector<std::vector<int>> hosts;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hosts.empty() || world.host() == nullptr) hosts.emplace_back();
    hosts.back().push_back(rank);
  }
  return hosts;
}

// The ranks whose copies `rank` has: itself, then those for which it keeps one.
std::vector<int> owners_at(const std::vector<int>& places, int rank) {
  std::vector<int> owners{rank};
  for (std::size_t owner = 0; owner < places.size(); ++owner) {
    if (places[owner] == rank) owners.push_back(static_cast<int>(owner));
  }
  return owners;
}

}  // namespace

class StateCopies::Impl {
 public:
  explicit Impl(const Group& world)
      : world_(world),
        here_(world.host_ranks()),
        places_(copy_places(hosts_of(world))),
        owners_(owners_at(places_, world.rank())) {
    const std::size_t bytes = 2 * owners_.size() * sizeof(Slot);
    comm::together(world_, [&] {  // a heap may be full
      if (here_.host != nullptr) {
        table_ = reinterpret_cast<Slot*>(here_.host->allocate(bytes));
      } else {
        private_ = std::make_unique<std::byte[]>(bytes);
        table_ = reinterpret_cast<Slot*>(private_.get());
      }
    });
    for (std::size_t i = 0; i < owners_.size(); ++i) slots_.emplace_back(table_ + 2 * i);
    const auto token = here_.host != nullptr ? here_.host->token(table_) : Host::kNoToken;
    // Exchanged now: after the loss of a rank nobody can ask it.
    tables_ = comm::all_gather_texts(world_, std::to_string(token));
    if (!places_.empty()) away_.emplace(world_.duplicate("copies"));
  }

  ~Impl() {
    if (keeps_memory_) {
      keep_until_the_next(slots_);  // and the table
    } else if (here_.host != nullptr) {
      here_.host->deallocate(reinterpret_cast<std::byte*>(table_));
    }
  }

  void take(const checkpoint::Shards& shards) {
    const checkpoint::PackedLayout layout(shards);
    at::Tensor mine;
    slots_[0].write(here_.host, shards.step, layout.bytes(), [&](const at::Tensor& block) {
      layout.copy_to(block);
      mine = block;
    });
    if (here_.host != nullptr && here_.ranks.size() > 1 && !slots_[0].is_shared() && !warned_) {
      warned_ = true;
      log_warn(
          "other ranks cannot read this rank's copy of the state: libtorch's memory is not shared "
          "(WEFT_HEAP_MB limits it); if this rank is lost, training goes on from a checkpoint");
    }
    if (away_) send_away(shards.step, mine);
  }

  void keep_memory() { keeps_memory_ = true; }

  std::vector<Copy> readable() const {
    std::vector<Copy> copies;
    if (here_.host == nullptr) {
      for (std::size_t i = 0; i < owners_.size(); ++i) {
        add(copies, owners_[i], table_ + 2 * i, [&](const Slot&, int slot) {
          return static_cast<std::byte*>(slots_[i].memory(slot).data_ptr());
        });
      }
      return copies;
    }
    for (std::size_t local = 0; local < here_.ranks.size(); ++local) {
      const int rank = here_.ranks[local], peer = static_cast<int>(local);
      const auto at = [&](Host::Token token) { return here_.host->at(peer, token); };
      auto* const table =
          reinterpret_cast<Slot*>(at(std::stoull(tables_[static_cast<std::size_t>(rank)])));
      const auto owners = owners_at(places_, rank);
      for (std::size_t i = 0; i < owners.size(); ++i) {
        add(copies, owners[i], table + 2 * i, [&](const Slot& slot, int number) -> std::byte* {
          if (slot.memory != Host::kNoToken) return at(slot.memory);
          return rank == world_.rank()
                     ? static_cast<std::byte*>(slots_[i].memory(number).data_ptr())
                     : nullptr;
        });
      }
    }
    return copies;
  }

 private:
  template <class Memory>
  void add(std::vector<Copy>& copies, int owner, const Slot* slots, const Memory& memory) const {
    for (int i = 0; i < 2; ++i) {
      const std::int64_t step = slots[i].step.load(std::memory_order_acquire);
      std::byte* const data = step < 0 ? nullptr : memory(slots[i], i);
      if (data == nullptr) continue;
      const std::int64_t bytes = slots[i].bytes;
      // The group keeps the mapping of a dead rank's memory.
      at::Tensor block = at::from_blob(
          data, {bytes}, [group = world_](void*) {}, at::kByte);
      copies.push_back({{world_.epoch(), world_.size(), owner, step, bytes}, std::move(block)});
    }
  }

  void send_away(std::int64_t step, const at::Tensor& mine) {
    const int to = places_[static_cast<std::size_t>(world_.rank())];
    at::Tensor size = at::scalar_tensor(mine.numel(), at::kLong);
    std::vector<at::Tensor> sizes{size}, parts{mine};
    const auto sent_size = away_->backend().send(sizes, to, kSizeTag),
               sent_part = away_->backend().send(parts, to, kPartTag);
    for (std::size_t i = 1; i < owners_.size(); ++i) {
      at::Tensor bytes = at::scalar_tensor(0, at::kLong);
      away_->recv(bytes, owners_[i], kSizeTag);
      slots_[i].write(here_.host, step, bytes.item<std::int64_t>(),
                      [&](at::Tensor block) { away_->recv(block, owners_[i], kPartTag); });
    }
    away_->wait(sent_size, "copy of the state");
    away_->wait(sent_part, "copy of the state");
  }

  const Group world_;
  const Group::HostRanks here_;
  const std::vector<int> places_, owners_;
  Slot* table_ = nullptr;  // two slots for each owner
  std::unique_ptr<std::byte[]> private_;
  std::vector<Slots> slots_;         // by owner
  std::vector<std::string> tables_;  // by rank: token of its table
  std::optional<Group> away_;        // for messages to other hosts
  bool warned_ = false, keeps_memory_ = false;
};

StateCopies::StateCopies(const Group& world) : impl_(std::make_unique<Impl>(world)) {}
StateCopies::~StateCopies() = default;
void StateCopies::take(const checkpoint::Shards& shards) { impl_->take(shards); }
std::vector<StateCopies::Copy> StateCopies::readable() const { return impl_->readable(); }
void StateCopies::keep_memory() const { impl_->keep_memory(); }

void keep_until_exit(std::shared_ptr<const StateCopies> copies) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const StateCopies>>;  // never freed
  if (copies == nullptr) return;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(copies));
}

}  // namespace weft::elastic
