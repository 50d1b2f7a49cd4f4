// The numbers of batches are in the store of the job, since the workers share no memory:
//
//   range    "next end": numbers below `next` are given out; changes by compare-and-set
//   done/R   what rank R has done: written every kPublish, read every kRead
//
// A worker takes several numbers at a time: a quarter of its share of those that are left, but 1 to
// most_. So requests are few while many are left, and no worker holds many near the end. The first
// rank of a worker asks, and broadcasts each number.
//
// The value seen last serves as the expected one of the next compare-and-set. If another worker was
// faster, the answer has the newer value, and the loop tries again. `next` never falls and `end`
// never grows until begin(). So an old value that has nothing left is right.
//
// close() lowers `end` to the end of the last batch that was begun.
#include "weft/strategy/internal/store_batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "weft/base/random.h"
#include "weft/comm/texts.h"
#include "weft/store/store.h"
#include "weft/strategy/internal/batch_numbers.h"

namespace weft::strategy::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kPublish = 200ms;  // between two writes of what this rank has done
constexpr auto kRead = 250ms;     // between two reads of what the others have done

// Numbers [next, end).
struct Numbers {
  std::int64_t next = 0, end = 0;

  std::string text() const { return std::to_string(next) + " " + std::to_string(end); }
  static Numbers of(const std::string& text) {
    Numbers found;
    const char* const last = text.data() + text.size();
    const auto next = std::from_chars(text.data(), last, found.next);
    const bool has_end = next.ec == std::errc() && next.ptr != last;
    const auto end = has_end ? std::from_chars(next.ptr + 1, last, found.end) : next;
    if (!has_end || end.ec != std::errc() || end.ptr != last)
      throw Error(Errc::kCorrupt, "the store has '" + text.substr(0, 40) +
                                      "' in place of the numbers of batches; does another program "
                                      "write to it?");
    return found;
  }
};

// What a rank publishes. in_row: batches in a row whose loss was not finite; -1: it has none.
struct OfOne {
  SharedBatches::Done done;
  double in_row = -1, first_step = 0;
};
constexpr std::size_t kOfOne = kDoneNumbers + 2;
static_assert(sizeof(OfOne) == kOfOne * sizeof(double));

// The ranks of this rank's worker, its first rank first.
Group group_of_worker(const Group& ranks, const WorkerRank& place) {
  const at::Tensor mine = at::tensor({place.worker, place.is_first ? 1 : 0}, at::kLong);
  at::Tensor all = at::empty({2 * ranks.size()}, at::kLong);
  ranks.all_gather(all, mine);
  std::vector<int> members;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (all[2 * rank].item<std::int64_t>() != place.worker) continue;
    const bool is_first = all[2 * rank + 1].item<std::int64_t>() != 0;
    members.insert(is_first ? members.begin() : members.end(), rank);
  }
  return ranks.subgroup(members, "batches of worker " + std::to_string(place.worker));
}

class StoreBatches final : public SharedBatches {
 public:
  StoreBatches(const Group& ranks, const WorkerRank& place, int most,
               std::shared_ptr<store::Store> store)
      : ranks_(ranks),
        place_(place),
        most_(most),
        store_(std::move(store)),
        prefix_("batches/" + comm::broadcast_text(ranks, std::to_string(random_number())) + "/"),
        worker_(group_of_worker(ranks, place)),
        all_(static_cast<std::size_t>(ranks.size())) {
    comm::together(ranks_, [this] { publish(); });
  }

  int workers() const override { return place_.workers; }

  void begin(std::int64_t count) override {
    check_count(count);
    ranks_.barrier();
    comm::together(ranks_, [&] {
      if (ranks_.rank() != 0) return;
      const Numbers numbers{0, count};
      ask([&](Deadline deadline) { return store_->set({range_key(), numbers.text()}, deadline); });
    });
    held_ = {};
    seen_.reset();
    ended_ = false;
  }

  std::optional<std::int64_t> take() override {
    if (ended_) return std::nullopt;
    at::Tensor number = at::full({1}, -1, at::kLong);
    if (worker_.rank() == 0) {
      if (held_.next == held_.end) take_several();
      if (held_.next < held_.end) number.fill_(held_.next++);
    }
    if (worker_.size() > 1) worker_.broadcast(number, 0);
    const auto taken = number.item<std::int64_t>();
    ended_ = taken < 0;
    return ended_ ? std::nullopt : std::optional(taken);
  }

  // Numbers below `next` that nobody has begun yet are with workers, which will.
  void close() override {
    ask([&](Deadline deadline) {
      for (store::Value seen = read(deadline);;) {
        const Numbers now = Numbers::of(seen.bytes);
        const std::int64_t whole = whole_batches(now.next, workers());
        if (whole >= now.end || change(seen, {now.next, whole}, deadline)) return true;
      }
    });
  }

  std::int64_t end() const override {
    return Numbers::of(ask([&](Deadline deadline) { return read(deadline); }).bytes).end;
  }

  void meet() override {
    publish();  // so that what is read later is not older
    at::Tensor mine = at::empty({static_cast<std::int64_t>(kOfOne)}, at::kDouble),
               all = at::empty({ranks_.size() * static_cast<std::int64_t>(kOfOne)}, at::kDouble);
    std::memcpy(mine.mutable_data_ptr(), &mine_, sizeof(OfOne));
    ranks_.all_gather(all, mine);
    std::memcpy(static_cast<void*>(all_.data()), all.const_data_ptr(), all.nbytes());
  }

  void add(const Done& done) override {
    mine_.done += done;
    mine_.done.memory_bytes = done.memory_bytes;
    if (Clock::now() - published_ >= kPublish) publish();
  }

  std::vector<Done> done() const override {
    look();
    std::vector<Done> found;
    for (const OfOne& one : all_) found.push_back(one.done);
    return found;
  }

  std::int64_t add_finite(bool is_finite, std::int64_t step) override {
    if (is_finite) {
      mine_.in_row = 0;
    } else if (mine_.in_row = std::max(0.0, mine_.in_row) + 1; mine_.in_row == 1) {
      mine_.first_step = static_cast<double>(step);
    }
    return static_cast<std::int64_t>(mine_.in_row);
  }

  // Asks for the others only where this rank's own last batch is not finite.
  NotFinite not_finite() const override {
    if (mine_.in_row == 0) return {};
    if (mine_.in_row > 0) look();
    NotFinite found;
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      const OfOne& one = all_[rank];
      if (one.in_row < 0) continue;
      if (one.in_row == 0) return {};
      found.batches += static_cast<std::int64_t>(one.in_row);
      const auto first = static_cast<std::int64_t>(one.first_step);
      if (found.rank >= 0 && first >= found.first_step) continue;
      found.first_step = first;
      found.rank = static_cast<int>(rank);
    }
    return found;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string range_key() const { return prefix_ + "range"; }
  std::string done_prefix() const { return prefix_ + "done/"; }

  // Training recovers from the loss of the store as from that of a rank.
  template <class Call>
  std::invoke_result_t<const Call&, Deadline> ask(const Call& call) const {
    try {
      return call(Deadline::in(ranks_.timeout()));
    } catch (const Error& error) {
      if (error.code() != Errc::kTimeout && error.code() != Errc::kUnavailable) throw;
      throw Error(Errc::kPeerLost, "the store of the job cannot be reached: " + error.message(),
                  {"take the next batch", ranks_.rank()});
    }
  }

  store::Value read(Deadline deadline) const {
    auto value = store_->get(range_key(), deadline);
    if (!value) throw Error(Errc::kUnavailable, "it has lost the numbers of batches");
    return std::move(*value);
  }
  // Returns false if another rank has changed them. `seen` is then what it has written.
  bool change(store::Value& seen, const Numbers& next, Deadline deadline) const {
    store::Swap swap = store_->compare_and_set({range_key(), next.text()}, seen.revision, deadline);
    if (!swap.value) throw Error(Errc::kUnavailable, "it has lost the numbers of batches");
    seen = std::move(*swap.value);
    return swap.done;
  }

  void take_several() {
    ask([&](Deadline deadline) {
      if (!seen_) seen_ = read(deadline);
      for (;;) {
        const Numbers now = Numbers::of(seen_->bytes);
        const std::int64_t left = now.end - now.next;
        // What was seen may be old; the end never grows.
        if (left <= 0) return false;
        const std::int64_t several = std::clamp<std::int64_t>(left / (4 * workers()), 1, most_);
        if (!change(*seen_, {now.next + several, now.end}, deadline)) continue;
        held_ = {now.next, now.next + several};
        return true;
      }
    });
  }

  void publish() {
    const std::string text(reinterpret_cast<const char*>(&mine_), sizeof(OfOne));
    ask([&](Deadline deadline) {
      return store_->set({done_prefix() + std::to_string(ranks_.rank()), text}, deadline);
    });
    published_ = Clock::now();
  }

  void look() const {
    if (Clock::now() - looked_ >= kRead) {
      const auto listing =
          ask([&](Deadline deadline) { return store_->list(done_prefix(), deadline); });
      for (const store::Item& item : listing.items) {
        const std::string rank = item.key.substr(done_prefix().size());
        std::size_t at = all_.size();
        std::from_chars(rank.data(), rank.data() + rank.size(), at);
        if (at < all_.size() && item.value.bytes.size() == sizeof(OfOne))
          std::memcpy(static_cast<void*>(&all_[at]), item.value.bytes.data(), sizeof(OfOne));
      }
      looked_ = Clock::now();
    }
    // The store has what this rank has published, which may be older.
    all_[static_cast<std::size_t>(ranks_.rank())] = mine_;
  }

  const Group ranks_;
  const WorkerRank place_;
  const int most_;
  const std::shared_ptr<store::Store> store_;
  const std::string prefix_;
  const Group worker_;
  // Of take(), which may be called by another thread than the rest.
  Numbers held_;                      // given to this worker, and not taken yet
  std::optional<store::Value> seen_;  // of range_key(), as this rank has last seen it
  bool ended_ = false;                // none was left
  OfOne mine_;
  mutable std::vector<OfOne> all_;  // by rank
  Clock::time_point published_{};
  mutable Clock::time_point looked_{};
};

}  // namespace

std::unique_ptr<SharedBatches> store_batches(const Group& ranks, const WorkerRank& place,
                                             int most_at_a_time,
                                             std::shared_ptr<store::Store> store) {
  return std::make_unique<StoreBatches>(ranks, place, most_at_a_time, std::move(store));
}

}  // namespace weft::strategy::internal
