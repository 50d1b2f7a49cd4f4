// Ranks of a new group find the newest state of which every part still exists, and share it:
//
//   1. All-gather which copies each rank can read. Each rank makes the same choice from this list
//      (choose()): which state, and for each part one holder.
//   2. If every rank can read every part in place: use them, and a barrier.
//   3. Else the holders broadcast the headers of the parts that some rank lacks. A reader learns
//      from them which bytes it needs.
//   4. Each holder that others need starts a thread that serves its parts (part_exchange.h) over a
//      group of its own, so that messages of `use` and of the server never mix.
//   5. use() runs on all ranks: it reads own parts in memory, and fetches ranges of the others.
//   6. Each rank tells its servers that it is done. A server ends when all its clients have. Then a
//      barrier.
//
// The barrier at the end is about memory: ranks of a host read each other's copies in place, so no
// rank may free its own before all have finished. If use() fails on a rank, it aborts the group of
// the servers, so that nobody waits in step 5 or 6.
#include "weft/elastic/newest_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/checkpoint/packed.h"
#include "weft/comm/texts.h"
#include "weft/elastic/holdings.h"
#include "weft/elastic/internal/part_exchange.h"

namespace weft::elastic {
namespace {

using checkpoint::Reader;

// The parts of the chosen state, by owner.
class Parts {
 public:
  Parts(const Group& group, Choice choice, const std::vector<StateCopies::Copy>& mine,
        const std::vector<std::vector<Holding>>& by_rank)
      : group_(group), choice_(std::move(choice)), lacked_(choice_.holders.size()) {
    for (const auto& copy : mine) {
      if (is_chosen(copy.what)) blocks_.emplace(copy.what.owner, copy.block);
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      std::set<int> has;
      for (const Holding& one : by_rank[static_cast<std::size_t>(rank)]) {
        if (is_chosen(one)) has.insert(one.owner);
      }
      for (int owner = 0; owner < owners(); ++owner) {
        if (!has.contains(owner)) lacked_[static_cast<std::size_t>(owner)].insert(rank);
      }
    }
  }

  bool all_have_all() const {
    return std::all_of(lacked_.begin(), lacked_.end(),
                       [](const auto& ranks) { return ranks.empty(); });
  }
  // Ranks that will ask this rank, or that this rank will ask.
  std::set<int> clients() const {
    std::set<int> all;
    for (int owner = 0; owner < owners(); ++owner) {
      if (holder(owner) == group_.rank())
        all.insert(lacked_[static_cast<std::size_t>(owner)].begin(),
                   lacked_[static_cast<std::size_t>(owner)].end());
    }
    return all;
  }
  std::set<int> servers() const {
    std::set<int> all;
    for (int owner = 0; owner < owners(); ++owner) {
      if (!blocks_.contains(owner)) all.insert(holder(owner));
    }
    return all;
  }
  const std::map<int, at::Tensor>& blocks() const { return blocks_; }

  // Tells all ranks the headers of the parts that some rank lacks. Collective.
  void share_headers() {
    std::map<int, std::string> said;  // by holder
    for (int owner = 0; owner < owners(); ++owner) {
      if (lacked_[static_cast<std::size_t>(owner)].empty()) continue;
      std::string& text = said[holder(owner)];
      if (holder(owner) != group_.rank()) continue;
      const at::Tensor header = checkpoint::packed_header(blocks_.at(owner));
      text += std::to_string(owner) + " " + std::to_string(header.numel()) + " ";
      text.append(static_cast<const char*>(header.const_data_ptr()),
                  static_cast<std::size_t>(header.numel()));
    }
    for (const auto& [rank, text] : said) take_headers(comm::broadcast_text(group_, text, rank));
  }

  Recovered open(const Group* channel) const {
    std::vector<Reader::Packed> all;
    for (int owner = 0; owner < owners(); ++owner) {
      if (const auto found = blocks_.find(owner); found != blocks_.end()) {
        all.push_back({found->second});
        continue;
      }
      const auto fetch = [channel = *channel, server = holder(owner), owner](
                             const std::vector<Reader::Range>& ranges, std::byte* out) {
        internal::fetch(channel, server, owner, ranges, out);
      };
      all.push_back({headers_.at(owner), choice_.bytes[static_cast<std::size_t>(owner)], fetch});
    }
    return {choice_.step, Reader::of_packed(all)};
  }

 private:
  int owners() const { return static_cast<int>(choice_.holders.size()); }
  int holder(int owner) const { return choice_.holders[static_cast<std::size_t>(owner)]; }
  bool is_chosen(const Holding& one) const {
    return one.epoch == choice_.epoch && one.step == choice_.step;
  }

  void take_headers(const std::string& text) {
    const auto damaged = [](bool is) {
      if (is) throw Error(Errc::kCorrupt, "another rank sent unreadable headers of its copies");
    };
    const char *at = text.data(), *const end = at + text.size();
    const auto number = [&](auto& value) {
      const auto [next, error] = std::from_chars(at, end, value);
      damaged(error != std::errc() || next == end || *next != ' ');
      at = next + 1;
    };
    while (at != end) {
      int owner = 0;
      std::int64_t bytes = 0;
      number(owner);
      number(bytes);
      damaged(bytes < 0 || bytes > end - at);
      at::Tensor header = at::empty({bytes}, at::kByte);
      std::memcpy(header.data_ptr(), at, static_cast<std::size_t>(bytes));
      headers_[owner] = std::move(header);
      at += bytes;
    }
  }

  const Group& group_;
  const Choice choice_;
  std::vector<std::set<int>> lacked_;  // by owner: the ranks that cannot read its part
  std::map<int, at::Tensor> blocks_, headers_;
};

// Lists the copies that each rank can read. Collective.
std::vector<std::vector<Holding>> holdings_of_all(const Group& group,
                                                  const std::vector<StateCopies::Copy>& mine) {
  std::vector<Holding> holdings;
  for (const auto& copy : mine) holdings.push_back(copy.what);
  std::vector<std::vector<Holding>> by_rank;
  for (const std::string& text : comm::all_gather_texts(group, to_text(holdings)))
    by_rank.push_back(holdings_of(text));
  return by_rank;
}

}  // namespace

std::vector<StateCopies::Copy> Brought::readable() const {
  std::vector<StateCopies::Copy> all;
  for (const auto& one : copies) {
    const auto readable = one->readable();
    all.insert(all.end(), readable.begin(), readable.end());
  }
  all.insert(all.end(), handed_over.begin(), handed_over.end());
  return all;
}

void hand_over(const Group& group, int staying, Brought& brought) {
  const auto mine = brought.readable();
  const auto choice = choose(holdings_of_all(group, mine));
  if (!choice) return;
  for (std::size_t owner = 0; owner < choice->holders.size(); ++owner) {
    // The lowest rank that can read it, so no rank that stays can.
    const int holder = choice->holders[owner], to = static_cast<int>(owner) % staying;
    if (holder < staying) continue;
    const Holding part{.epoch = choice->epoch,
                       .world = static_cast<int>(choice->holders.size()),
                       .owner = static_cast<int>(owner),
                       .step = choice->step,
                       .bytes = choice->bytes[owner]};
    if (group.rank() == holder) {
      const auto found = std::find_if(mine.begin(), mine.end(),
                                      [&](const auto& copy) { return copy.what == part; });
      group.send(found->block, to);
    } else if (group.rank() == to) {
      at::Tensor block = at::empty({part.bytes}, at::kByte);
      group.recv(block, holder);
      brought.handed_over.push_back({part, std::move(block)});
    }
  }
}

void use_newest_state(const Group& group, const Brought& brought, const UseState& use) {
  failpoint("state.begin");
  const auto mine = brought.readable();
  const auto by_rank = holdings_of_all(group, mine);
  failpoint("state.listed");
  std::string missing;
  auto choice = choose(by_rank, &missing);
  if (!choice) return use(std::nullopt, missing);
  Parts parts(group, std::move(*choice), mine, by_rank);
  if (parts.all_have_all()) {
    use(parts.open(nullptr), "");
    failpoint("state.loaded");
    return group.barrier();
  }
  parts.share_headers();
  // Collective, so also on ranks that neither serve nor fetch.
  const Group channel = group.duplicate("state");
  std::optional<internal::PartServer> server;
  try {
    if (const auto clients = parts.clients(); !clients.empty())
      server.emplace(channel, parts.blocks(), static_cast<int>(clients.size()));
    use(parts.open(&channel), "");
  } catch (...) {
    channel.abort();  // so that no rank waits for this one
    throw;
  }
  failpoint("state.loaded");
  for (const int rank : parts.servers()) internal::end_fetches(channel, rank);
  if (server) server->finish();
  group.barrier();
}

}  // namespace weft::elastic
